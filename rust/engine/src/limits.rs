//! Bounds on what a file or a caller may ask for, each with its reason.
