//! The connection tables by their names in the file.

use super::words::Word;
use hairpin_core::table::Method;

const COUNT: usize = Method::ALL.len();

/// Every method and its word.
const CHOICES: [(Method, &str); COUNT] = {
    let mut choices = [(Method::DEFAULT, ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        choices[i] = (Method::ALL[i], Method::ALL[i].name());
        i += 1;
    }
    choices
};

/// The words as the reference lists them, each with what it means.
pub(super) const WORDS: [(&str, &str); COUNT] = {
    let mut words = [("", ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        words[i] = (Method::ALL[i].name(), Method::ALL[i].description());
        i += 1;
    }
    words
};

impl Word for Method {
    const WORDS: &'static [(Method, &'static str)] = &CHOICES;
}
