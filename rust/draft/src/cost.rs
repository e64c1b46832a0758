//! What a verification costs, in plain steps.
//!
//! In: measured points (k drafted tokens, cost). Out: the cost of any k, to `gate`, `cascade` and `replay`.
//!
//! C1  k counts drafted tokens, so a verification forwards k + 1 rows. Cost 1 is one plain step; `cost(0)` is 1.
//! C2  Between points the cost is linear in k; outside them it is that of the nearest point, never extrapolated.
//! C3  Points ascend in k. Costs need not ascend: kernels have cliffs, and a table says what was measured.
//! C4  A table knows where it comes from.

use std::borrow::Cow;

use crate::error::{OptionsError, check_range};

/// The longest draft that a table can speak of.
pub const MAX_DRAFT: usize = 4096;
/// The least cost that a table may claim: a verification does at least a plain step's work, timing noise aside.
pub const MIN_COST: f64 = 0.5;
/// The most.
pub const MAX_COST: f64 = 10_000.0;

/// One measured point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostPoint {
    /// Drafted tokens, 1 to [`MAX_DRAFT`].
    pub k: usize,
    /// Cost of verifying them, in plain steps.
    pub cost: f64,
}

/// The cost of a verification as a function of the draft's length.
#[derive(Debug, Clone, PartialEq)]
pub struct CostTable {
    points: Vec<CostPoint>,
    provenance: Cow<'static, str>,
}

/// What a first run assumes until this machine has been measured: at the dear end of what small models cost with few hundred
/// tokens of context, so that a first run errs towards plain decoding.
const ASSUMED: [(usize, f64); 7] = [(1, 1.03), (2, 1.07), (4, 1.20), (8, 1.60), (12, 2.15), (16, 2.70), (32, 5.00)];

impl Default for CostTable {
    fn default() -> Self {
        let points = ASSUMED.iter().map(|&(k, cost)| CostPoint { k, cost }).collect();
        Self { points, provenance: Cow::Borrowed("assumed, not measured on this machine") }
    }
}

impl CostTable {
    /// A table through `points`; `provenance` says which file, threads, instruction set and day they belong to.
    ///
    /// # Errors
    /// No points, k not ascending or out of range, or a cost that is not a number from [`MIN_COST`] to [`MAX_COST`].
    pub fn new(points: Vec<CostPoint>, provenance: impl Into<String>) -> Result<Self, OptionsError> {
        if points.is_empty() {
            return Err(OptionsError::new("costs", "at least one point", "none"));
        }
        for point in &points {
            check_range("costs.k", point.k, 1, MAX_DRAFT)?;
            check_range("costs.cost", point.cost, MIN_COST, MAX_COST)?;
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].k >= pair[1].k) {
            let expected = format!("more than {}", pair[0].k);
            return Err(OptionsError::new("costs.k", expected, pair[1].k));
        }
        Ok(Self { points, provenance: Cow::Owned(provenance.into()) })
    }

    /// The points, ascending in k.
    pub fn points(&self) -> &[CostPoint] {
        &self.points
    }

    /// Where the points come from.
    pub fn provenance(&self) -> &str {
        &self.provenance
    }

    /// Cost of a step that verifies `k` drafted tokens, in plain steps.
    pub fn cost(&self, k: usize) -> f64 {
        if k == 0 {
            return 1.0;
        }
        let above = self.points.partition_point(|point| point.k < k);
        match (above.checked_sub(1).map(|below| self.points[below]), self.points.get(above)) {
            (Some(low), Some(high)) => {
                let part = (k - low.k) as f64 / (high.k - low.k) as f64;
                low.cost + part * (high.cost - low.cost)
            }
            (None, Some(only)) => only.cost,
            (Some(only), None) => only.cost,
            (None, None) => 1.0,
        }
    }

    /// The shortest draft worth verifying under this table: 1 where one more row is nearly free (at most 1.05), else 2.
    pub fn shortest_draft(&self) -> usize {
        if self.cost(1) <= 1.05 { 1 } else { 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(points: &[(usize, f64)]) -> Result<CostTable, OptionsError> {
        CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test")
    }

    #[test]
    fn cost_is_linear_between_points_and_flat_outside() {
        let table = table(&[(2, 1.65), (4, 1.42), (8, 2.84), (16, 4.5)]).unwrap();
        let costs =
            [(0, 1.0), (1, 1.65), (2, 1.65), (3, 1.535), (4, 1.42), (6, 2.13), (8, 2.84), (12, 3.67), (16, 4.5)];
        for (k, cost) in costs {
            assert!((table.cost(k) - cost).abs() < 1e-12, "cost({k}) is {}", table.cost(k));
        }
        assert_eq!(table.cost(17), 4.5);
        assert_eq!(table.cost(usize::MAX), 4.5);
    }

    #[test]
    fn a_table_that_makes_no_sense_is_refused_by_name() {
        let refused = |points: &[(usize, f64)]| table(points).unwrap_err().to_string();
        assert_eq!(refused(&[]), "`costs`: expected at least one point, found none");
        assert_eq!(refused(&[(0, 1.0)]), "`costs.k`: expected 1 to 4096, found 0");
        assert_eq!(refused(&[(4, 1.2), (4, 1.3)]), "`costs.k`: expected more than 4, found 4");
        assert_eq!(refused(&[(4, 1.2), (2, 1.3)]), "`costs.k`: expected more than 4, found 2");
        assert_eq!(refused(&[(4, f64::NAN)]), "`costs.cost`: expected 0.5 to 10000, found NaN");
        assert_eq!(refused(&[(4, f64::INFINITY)]), "`costs.cost`: expected 0.5 to 10000, found inf");
        assert_eq!(refused(&[(4, 0.1)]), "`costs.cost`: expected 0.5 to 10000, found 0.1");
    }

    #[test]
    fn the_shipped_table_passes_its_own_checks_and_says_that_it_is_assumed() {
        let shipped = CostTable::default();
        assert!(CostTable::new(shipped.points().to_vec(), "copy").is_ok());
        assert!(shipped.provenance().contains("not measured"));
        assert_eq!((shipped.cost(1), shipped.shortest_draft()), (1.03, 1));
        assert_eq!(table(&[(2, 1.65)]).unwrap().shortest_draft(), 2);
    }
}
