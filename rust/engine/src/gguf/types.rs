//! The element types of tensors: id, name and block of each.
//!
//! T1  Every id that ggml writes, or wrote into GGUF files in the past, has a name here, also where the engine cannot
//!     compute with it: a file is described completely, and refused by the type's name.
//! T2  A block holds at most 256 values and 292 bytes, so its products with a checked row length are small.
//!
//! Sizes are those of ggml's block structures.

/// An element type as ggml numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs, reason = "the names are the format's own")]
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    Q4_0_4_4 = 31,
    Q4_0_4_8 = 32,
    Q4_0_8_8 = 33,
    TQ1_0 = 34,
    TQ2_0 = 35,
    IQ4_NL_4_4 = 36,
    IQ4_NL_4_8 = 37,
    IQ4_NL_8_8 = 38,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

/// Type, name, values of a block, bytes of a block.
type Row = (GgmlType, &'static str, u64, u64);

/// All types in the order of their ids.
const TABLE: [Row; 41] = {
    use GgmlType::*;
    [
        (F32, "F32", 1, 4),
        (F16, "F16", 1, 2),
        (Q4_0, "Q4_0", 32, 18),
        (Q4_1, "Q4_1", 32, 20),
        (Q5_0, "Q5_0", 32, 22),
        (Q5_1, "Q5_1", 32, 24),
        (Q8_0, "Q8_0", 32, 34),
        (Q8_1, "Q8_1", 32, 36),
        (Q2_K, "Q2_K", 256, 84),
        (Q3_K, "Q3_K", 256, 110),
        (Q4_K, "Q4_K", 256, 144),
        (Q5_K, "Q5_K", 256, 176),
        (Q6_K, "Q6_K", 256, 210),
        (Q8_K, "Q8_K", 256, 292),
        (IQ2_XXS, "IQ2_XXS", 256, 66),
        (IQ2_XS, "IQ2_XS", 256, 74),
        (IQ3_XXS, "IQ3_XXS", 256, 98),
        (IQ1_S, "IQ1_S", 256, 50),
        (IQ4_NL, "IQ4_NL", 32, 18),
        (IQ3_S, "IQ3_S", 256, 110),
        (IQ2_S, "IQ2_S", 256, 82),
        (IQ4_XS, "IQ4_XS", 256, 136),
        (I8, "I8", 1, 1),
        (I16, "I16", 1, 2),
        (I32, "I32", 1, 4),
        (I64, "I64", 1, 8),
        (F64, "F64", 1, 8),
        (IQ1_M, "IQ1_M", 256, 56),
        (BF16, "BF16", 1, 2),
        (Q4_0_4_4, "Q4_0_4_4", 32, 18),
        (Q4_0_4_8, "Q4_0_4_8", 32, 18),
        (Q4_0_8_8, "Q4_0_8_8", 32, 18),
        (TQ1_0, "TQ1_0", 256, 54),
        (TQ2_0, "TQ2_0", 256, 66),
        (IQ4_NL_4_4, "IQ4_NL_4_4", 32, 18),
        (IQ4_NL_4_8, "IQ4_NL_4_8", 32, 18),
        (IQ4_NL_8_8, "IQ4_NL_8_8", 32, 18),
        (MXFP4, "MXFP4", 32, 17),
        (NVFP4, "NVFP4", 64, 36),
        (Q1_0, "Q1_0", 128, 18),
        (Q2_0, "Q2_0", 64, 18),
    ]
};

impl GgmlType {
    /// The type with this id, `None` for an id that ggml never gave to a type found in GGUF files.
    pub fn from_id(id: u32) -> Option<GgmlType> {
        TABLE.iter().map(|row| row.0).find(|ty| ty.id() == id)
    }

    /// The number that stands in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    fn row(self) -> &'static Row {
        // Ids 4 and 5 are not in the table, so a row stands at its id or two below.
        let id = self as usize;
        &TABLE[if id < 4 { id } else { id - 2 }]
    }

    /// The name as ggml writes it, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Values in a block; 1 for types without blocks.
    pub fn block_size(self) -> u64 {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Whether the engine computes with weights of this type.
    pub fn supported(self) -> bool {
        use GgmlType::*;
        matches!(
            self,
            F32 | F16
                | BF16
                | Q8_0
                | Q4_0
                | Q4_1
                | Q5_0
                | Q5_1
                | Q2_K
                | Q3_K
                | Q4_K
                | Q5_K
                | Q6_K
                | IQ4_NL
                | IQ4_XS
                | MXFP4
                | IQ2_XXS
                | IQ2_XS
                | IQ2_S
                | IQ3_XXS
                | IQ3_S
                | IQ1_S
                | IQ1_M
                | TQ1_0
                | TQ2_0
                | NVFP4
        )
    }

    /// All types, by rising id.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        TABLE.iter().map(|row| row.0)
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_at_its_own_id_and_name() {
        for ty in GgmlType::all() {
            assert_eq!(ty.row().0, ty);
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(format!("{ty:?}"), ty.name());
            assert!(ty.block_size() >= 1 && ty.block_size() <= 256 && ty.block_bytes() >= 1);
        }
    }

    #[test]
    fn ids_without_a_type_are_unknown() {
        for id in [4, 5, 43, 44, 255, 256, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None);
        }
    }
}
