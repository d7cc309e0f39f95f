//! The time of day as HTTP says it (RFC 9110, 5.6.7), for the `Date` of responses of our own.

use core::fmt;

/// Bytes of a date.
pub const LENGTH: usize = 29;
/// Seconds of a day; there are no leap seconds in this time.
const DAY: u64 = 86_400;
/// The last second that has four digits of a year: 9999-12-31T23:59:59Z.
const LAST: u64 = 253_402_300_799;

/// A moment, to the second, as in `Sun, 06 Nov 1994 08:49:37 GMT`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Date([u8; LENGTH]);

impl Date {
    /// So many seconds after the beginning of 1970, in UTC; none after the year 9999.
    pub fn new(unix_s: u64) -> Date {
        let unix_s = unix_s.min(LAST);
        let (days, second) = (unix_s / DAY, unix_s % DAY);
        let (year, month, day) = civil(days);
        let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
        // 1970 began with a Thursday.
        text[..3].copy_from_slice(name(b"SunMonTueWedThuFriSat", (days + 4) % 7));
        put(&mut text[5..7], day);
        text[8..11].copy_from_slice(name(b"JanFebMarAprMayJunJulAugSepOctNovDec", month - 1));
        put(&mut text[12..16], year);
        put(&mut text[17..19], second / 3600);
        put(&mut text[20..22], second / 60 % 60);
        put(&mut text[23..25], second % 60);
        Date(text)
    }

    /// The value of `Date`.
    pub fn bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl fmt::Debug for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(core::str::from_utf8(&self.0).unwrap_or_default())
    }
}

/// Year, month (1 to 12) and day of the month, `days` after the first of January 1970 in the Gregorian calendar: counted
/// from the first of March of year 0, so that a leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The three letters of a weekday or month.
fn name(names: &[u8], index: u64) -> &[u8] {
    names.chunks_exact(3).nth(index as usize).unwrap_or(b"???")
}

/// Writes a number with leading zeros.
fn put(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn moments_are_written_as_http_has_them() {
        for (unix_s, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_164_799, "Wed, 28 Feb 2024 23:59:59 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (LAST, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(format!("{:?}", Date::new(unix_s)), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for days in 1..=LAST / DAY {
            let (year, month, day) = before;
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            let expected = match (day == length, month == 12) {
                (false, _) => (year, month, day + 1),
                (true, false) => (year, month + 1, 1),
                (true, true) => (year + 1, 1, 1),
            };
            before = civil(days);
            assert_eq!(before, expected);
        }
    }
}
