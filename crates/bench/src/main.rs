//! Measures Fuse against its budgets and prints ratios.

fn main() {}
