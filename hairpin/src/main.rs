fn main() { print!("{}", hairpin::config::markdown()) }
