//! Numbers and times as people read them.

/// A count: whole below 100,000, with a prefix above.
pub(crate) fn number(value: f64) -> String {
    if value.round() < 100_000.0 { format!("{value:.0}") } else { scaled(value).trim_end().to_string() }
}

/// Three digits and an SI prefix, ready for a unit: `1.23 G`, `45.6 k`, `789 `.
pub(crate) fn scaled(value: f64) -> String {
    let mut value = value.max(0.0);
    for prefix in ["", "k", "M", "G", "T"] {
        let decimals = match value {
            v if prefix.is_empty() || v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        if value < 999.5 || prefix == "T" {
            return format!("{value:.decimals$} {prefix}");
        }
        value /= 1000.0;
    }
    String::new()
}

/// A share of one, in percent with one digit after the point.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A span of time in its two greatest units: `7s`, `3m12s`, `2h05m`, `4d03h`.
pub(crate) fn span(seconds: f64) -> String {
    // A cast of what is negative, too large or no number at all ends at a bound.
    let s = seconds as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// A size that is a power of two: `256 B`, `64 KiB`, `1 GiB`.
pub(crate) fn bytes(size: f64) -> String {
    let mut size = size;
    for unit in ["B", "KiB", "MiB"] {
        if size < 1024.0 {
            return format!("{size:.0} {unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.0} GiB")
}

/// A short time with its unit: `85 us`, `1.25 ms`, `2.00 s`.
pub(crate) fn brief(microseconds: f64) -> String {
    match microseconds {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 999_500.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        let texts = [0.0, 0.4, 999.4, 999.6, 1234.0, 45_600.0, 999_499.0, 999_600.0, 7.89e9, 1e13, 2e16].map(scaled);
        let expected =
            ["0 ", "0 ", "999 ", "1.00 k", "1.23 k", "45.6 k", "999 k", "1.00 M", "7.89 G", "10.0 T", "20000 T"];
        assert_eq!(texts, expected);
        assert_eq!([0.0, 99_999.4, 99_999.6, 1e6].map(number), ["0", "99999", "100 k", "1.00 M"]);
        assert_eq!([0.0, 0.125, 1.0].map(percent), ["0.0 %", "12.5 %", "100.0 %"]);
    }

    #[test]
    fn times_have_two_units() {
        let texts = [-1.0, 0.9, 59.9, 60.0, 192.0, 3599.0, 7500.0, 86_399.0, 356_400.0, f64::NAN].map(span);
        assert_eq!(texts, ["0s", "0s", "59s", "1m00s", "3m12s", "59m59s", "2h05m", "23h59m", "4d03h", "0s"]);
        assert_eq!([0.4, 85.0, 999.6, 1250.0, 2e6].map(brief), ["0 us", "85 us", "1.00 ms", "1.25 ms", "2.00 s"]);
    }
}
