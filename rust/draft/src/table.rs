//! The table of costs: what a forward of several rows costs before this machine has been timed, and where that is known from.
//!
//! In: measured points (drafted tokens, cost), for one or more counts of cached tokens. Out: the cost of any number of rows, to `cost` and `replay`.
//!
//! C1  k counts drafted tokens, so a verification forwards k + 1 rows. Cost 1 is one plain step at the same number of cached tokens; `cost(0, _)` is 1.
//! C2  Between two points the cost is linear in k. Below the first point it is the first point's cost. Beyond the last it goes on with the slope of the
//!     last segment, which starts at (0, 1) if there is one point; a falling last segment goes on flat.
//! C3  Points ascend in k, their costs need not: kernels have cliffs, and a table says what was measured.
//! C4  A curve holds for one number of cached tokens. Between two curves the cost is linear in the cached tokens; outside them it is the nearest curve's.
//! C5  A table carries its provenance: the file, machine and day that it was measured with.

use std::borrow::Cow;

use crate::error::{OptionsError, check_range};

/// The longest draft of a table, and of a draft source.
pub const MAX_DRAFT: usize = 4096;
/// The least cost of a point: a verification does at least the work of a plain step, timing noise aside.
pub const MIN_COST: f64 = 0.5;
/// The greatest cost of a point.
pub const MAX_COST: f64 = 10_000.0;

/// One measured point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostPoint {
    /// Drafted tokens, 1 to [`MAX_DRAFT`].
    pub k: usize,
    /// Cost of verifying them, in plain steps.
    pub cost: f64,
}

/// The points that were measured at one number of cached tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct CostCurve {
    /// Cached tokens.
    pub cached: usize,
    /// At least one point, ascending in k.
    pub points: Vec<CostPoint>,
}

/// The cost of a verification as a function of the draft's length and of the cached tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct CostTable {
    /// Ascending in cached tokens.
    curves: Vec<CostCurve>,
    provenance: Cow<'static, str>,
}

/// What a first run assumes until this machine has been measured: the upper end of the costs measured for models below 1 B parameters with a few hundred
/// cached tokens, so that a first run errs towards plain decoding.
const ASSUMED: [(usize, f64); 7] = [(1, 1.03), (2, 1.07), (4, 1.20), (8, 1.60), (12, 2.15), (16, 2.70), (32, 5.00)];

impl Default for CostTable {
    fn default() -> Self {
        let points = ASSUMED.iter().map(|&(k, cost)| CostPoint { k, cost }).collect();
        let provenance = Cow::Borrowed("assumed, not measured on this machine");
        Self { curves: vec![CostCurve { cached: 0, points }], provenance }
    }
}

impl CostTable {
    /// A table of one curve, which holds for every number of cached tokens; `provenance` says which file, threads, instruction set and day it belongs to.
    ///
    /// # Errors
    /// No points, k not ascending or out of range, or a cost that is not a number from [`MIN_COST`] to [`MAX_COST`].
    pub fn new(points: Vec<CostPoint>, provenance: impl Into<String>) -> Result<Self, OptionsError> {
        Self::with_curves(vec![CostCurve { cached: 0, points }], provenance)
    }

    /// A table of curves that were measured at several numbers of cached tokens.
    ///
    /// # Errors
    /// No curves, curves that do not ascend in cached tokens, or a curve that [`Self::new`] would refuse.
    pub fn with_curves(curves: Vec<CostCurve>, provenance: impl Into<String>) -> Result<Self, OptionsError> {
        if curves.iter().all(|curve| curve.points.is_empty()) {
            return Err(OptionsError::new("costs", "at least one point", "none"));
        }
        for curve in &curves {
            curve.check()?;
        }
        if let Some(pair) = curves.windows(2).find(|pair| pair[0].cached >= pair[1].cached) {
            let expected = format!("more than {}", pair[0].cached);
            return Err(OptionsError::new("costs.cached", expected, pair[1].cached));
        }
        Ok(Self { curves, provenance: Cow::Owned(provenance.into()) })
    }

    /// The curves, ascending in cached tokens.
    pub fn curves(&self) -> &[CostCurve] {
        &self.curves
    }

    /// Where the points come from.
    pub fn provenance(&self) -> &str {
        &self.provenance
    }

    /// Cost of a step that verifies `k` drafted tokens behind `cached` cached ones, in plain steps.
    pub fn cost(&self, k: usize, cached: usize) -> f64 {
        let above = self.curves.partition_point(|curve| curve.cached < cached);
        match (above.checked_sub(1).map(|below| &self.curves[below]), self.curves.get(above)) {
            (Some(low), Some(high)) => {
                let part = (cached - low.cached) as f64 / (high.cached - low.cached) as f64;
                low.cost(k) + part * (high.cost(k) - low.cost(k))
            }
            (None, Some(only)) | (Some(only), None) => only.cost(k),
            (None, None) => 1.0,
        }
    }

    /// The shortest draft worth verifying under this table: 1 where one more row is nearly free (at most 1.05), else 2.
    pub fn shortest_draft(&self) -> usize {
        if self.cost(1, 0) <= 1.05 { 1 } else { 2 }
    }
}

impl CostCurve {
    fn check(&self) -> Result<(), OptionsError> {
        if self.points.is_empty() {
            return Err(OptionsError::new("costs", "at least one point", "none"));
        }
        for point in &self.points {
            check_range("costs.k", point.k, 1, MAX_DRAFT)?;
            check_range("costs.cost", point.cost, MIN_COST, MAX_COST)?;
        }
        match self.points.windows(2).find(|pair| pair[0].k >= pair[1].k) {
            Some(pair) => Err(OptionsError::new("costs.k", format!("more than {}", pair[0].k), pair[1].k)),
            None => Ok(()),
        }
    }

    fn cost(&self, k: usize) -> f64 {
        if k == 0 {
            return 1.0;
        }
        let above = self.points.partition_point(|point| point.k < k);
        match (above.checked_sub(1).map(|below| self.points[below]), self.points.get(above)) {
            (Some(low), Some(high)) => {
                let part = (k - low.k) as f64 / (high.k - low.k) as f64;
                low.cost + part * (high.cost - low.cost)
            }
            (None, Some(first)) => first.cost,
            (Some(last), None) => last.cost + (k - last.k) as f64 * self.last_slope(),
            (None, None) => 1.0,
        }
    }

    /// Cost of one row more beyond the last point.
    fn last_slope(&self) -> f64 {
        let start = CostPoint { k: 0, cost: 1.0 };
        let (low, last) = match self.points.as_slice() {
            [.., low, last] => (*low, *last),
            [last] => (start, *last),
            [] => return 0.0,
        };
        ((last.cost - low.cost) / (last.k - low.k) as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(points: &[(usize, f64)]) -> Vec<CostPoint> {
        points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect()
    }

    fn table(of: &[(usize, f64)]) -> Result<CostTable, OptionsError> {
        CostTable::new(points(of), "a test")
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
    }

    #[test]
    fn cost_is_linear_between_points_and_goes_on_with_the_last_slope() {
        let table = table(&[(2, 1.65), (4, 1.42), (8, 2.84), (16, 4.5)]).unwrap();
        let costs =
            [(0, 1.0), (1, 1.65), (2, 1.65), (3, 1.535), (4, 1.42), (6, 2.13), (8, 2.84), (12, 3.67), (16, 4.5)];
        for (k, cost) in costs {
            assert_near(table.cost(k, 7), cost);
        }
        assert_near(table.cost(24, 7), 4.5 + 1.66);
        assert!(table.cost(63, 0) > 14.0, "sixty-four rows are not free");
    }

    #[test]
    fn one_point_goes_on_from_a_plain_step_and_a_falling_end_goes_on_flat() {
        assert_near(table(&[(4, 1.2)]).unwrap().cost(8, 0), 1.4);
        assert_near(table(&[(4, 1.2)]).unwrap().cost(1, 0), 1.2);
        assert_near(table(&[(1, 1.0)]).unwrap().cost(99, 0), 1.0);
        assert_near(table(&[(2, 1.6), (4, 1.4)]).unwrap().cost(99, 0), 1.4);
    }

    #[test]
    fn cost_is_linear_between_curves_and_the_nearest_ones_outside() {
        let curve = |cached, cost| CostCurve { cached, points: points(&[(4, cost)]) };
        let table = CostTable::with_curves(vec![curve(64, 1.2), curve(2048, 1.6)], "a test").unwrap();
        for (cached, cost) in [(0, 1.2), (64, 1.2), (1056, 1.4), (2048, 1.6), (99_999, 1.6)] {
            assert_near(table.cost(4, cached), cost);
        }
        assert_near(table.cost(0, 1056), 1.0);
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
        let curve = |cached| CostCurve { cached, points: points(&[(1, 1.1)]) };
        let refused = |curves| CostTable::with_curves(curves, "a test").unwrap_err().to_string();
        assert_eq!(refused(vec![curve(64), curve(64)]), "`costs.cached`: expected more than 64, found 64");
        assert_eq!(
            refused(vec![curve(64), CostCurve { cached: 65, points: vec![] }]),
            "`costs`: expected at least one point, found none"
        );
    }

    #[test]
    fn the_shipped_table_passes_its_own_checks_and_says_that_it_is_assumed() {
        let shipped = CostTable::default();
        assert!(CostTable::with_curves(shipped.curves().to_vec(), "copy").is_ok());
        assert!(shipped.provenance().contains("not measured"));
        assert_eq!((shipped.cost(1, 300), shipped.shortest_draft()), (1.03, 1));
        assert_eq!(table(&[(2, 1.65)]).unwrap().shortest_draft(), 2);
    }
}
