//! Statistics of the algorithms, with fixed seeds.
