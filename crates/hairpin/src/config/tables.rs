//! The connection tables by their names in the file.

use super::words::SettingWord;
use hairpin_core::table::LookupMethod;

const COUNT: usize = LookupMethod::ALL.len();

/// Every method and its word.
const CHOICES: [(LookupMethod, &str); COUNT] = {
    let mut choices = [(LookupMethod::DEFAULT, ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        choices[i] = (LookupMethod::ALL[i], LookupMethod::ALL[i].name());
        i += 1;
    }
    choices
};

/// The words as the reference lists them, each with what it means.
pub(super) const WORDS: [(&str, &str); COUNT] = {
    let mut words = [("", ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        words[i] = (LookupMethod::ALL[i].name(), LookupMethod::ALL[i].description());
        i += 1;
    }
    words
};

impl SettingWord for LookupMethod {
    const WORDS: &'static [(LookupMethod, &'static str)] = &CHOICES;
}
