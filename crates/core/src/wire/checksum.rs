//! The Internet checksum: computed (RFC 1071) and kept in step with changes (RFC 1624, equation 3).
//!
//! One's complement has two zeros, 0x0000 and 0xffff, and which of them a computation ends with is where
//! implementations differ. Hairpin's results must equal the kernel's (`bpf_l4_csum_replace`, `bpf_l3_csum_replace`),
//! because BPF rewrites the same flows:
//!
//! - A *changed* checksum is never 0xffff: the kernel sums from `~csum_unfold(check)`, whose upper half is all ones, so
//!   that the sum is never zero, folds to 1 to 0xffff and is complemented to 0 to 0xfffe. [`Difference::update`] adds
//!   0xffff for the same effect, and the result depends only on the residue, not on the order of the changes.
//! - A changed *partial* sum (a pseudo-header's, not complemented) is zero only if it was zero and nothing but zeros
//!   was added; [`Difference::update_partial`].
//! - UDP's "a computed 0 is sent as 0xffff" (RFC 768) is [`super::udp::mangled`], applied last.

/// A one's complement sum of 16-bit words in network order, not folded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of `bytes`; an odd last byte counts as if a zero byte followed.
    pub fn of(bytes: &[u8]) -> Sum {
        // Summed in the machine's byte order and swapped at the end (RFC 1071, 2(B)). 2^16 words of 32 bits, more than
        // any frame has, are far from filling 64 bits.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        total += match *rest {
            [a, b, c] => u64::from(u16::from_ne_bytes([a, b])) + u64::from(u16::from_ne_bytes([c, 0])),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a] => u64::from(u16::from_ne_bytes([a, 0])),
            _ => 0,
        };
        Sum(u64::from(u16::from_be(fold(total))))
    }

    /// The sum of an IPv4 header without options, which nearly all are: a length the compiler knows needs no loop.
    #[inline(always)]
    pub(crate) fn of_header(header: &[u8; 20]) -> Sum {
        let (words, _) = header.as_chunks::<4>();
        let total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        Sum(u64::from(u16::from_be(fold(total))))
    }

    /// Whether an IPv4 header without options, in three words as they stand in memory, has a right checksum. (So do twenty
    /// zeros, which are no such header.)
    #[inline(always)]
    pub(crate) fn is_right(first: u64, second: u64, third: u32) -> bool {
        // 2^64, 2^32 and 2^16 all leave 1 when divided by 0xffff: what is performed of a word goes to its other end, and
        // the 16-bit words within add up. Being divisible takes the compiler one multiplication.
        let (sum, carry) = first.overflowing_add(second);
        let (sum, more) = sum.overflowing_add(u64::from(third) + u64::from(carry));
        // After the second carry less than 2^33 is left: there is room for it.
        sum.wrapping_add(u64::from(more)) % 0xffff == 0
    }

    /// The sum of the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 3.1, RFC 8200 8.1): `source` and `destination` are
    /// 4 or 16 bytes, `length` is that of transport header and payload in bytes.
    pub fn pseudo_header(source: &[u8], destination: &[u8], protocol: u8, length: usize) -> Sum {
        Sum::of(source) + Sum::of(destination) + Sum(u64::from(protocol) + length as u64)
    }

    /// The sum in 16 bits.
    pub fn folded(self) -> u16 {
        fold(self.0)
    }

    /// The checksum: the complement of the folded sum.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

impl core::ops::Add for Sum {
    type Output = Sum;
    fn add(self, other: Sum) -> Sum {
        Sum(u64::from(self.folded()) + u64::from(other.folded()))
    }
}

/// The sum of changes of checksummed words, in the machine's byte order: sums do not depend on it (RFC 1071, 2(B)).
/// Fits any number of changes a packet has room for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Difference(u64);

impl Difference {
    /// Nothing changed.
    pub const NONE: Difference = Difference(0);

    /// An IPv4 header's hops became one less, and were not 0: they are the upper byte of a word.
    pub(crate) const ONE_HOP: Difference = Difference(!0x0100_u16.to_be() as u64);

    /// From what the covered bytes summed up to `before` to what they do `after`.
    pub fn between(before: Sum, after: Sum) -> Difference {
        let mut difference = Difference::NONE;
        difference.word(before.folded(), after.folded());
        difference
    }

    /// A 16-bit word at an even offset became another.
    #[inline(always)]
    pub fn word(&mut self, old: u16, new: u16) {
        self.0 += u64::from(!old.to_be()) + u64::from(new.to_be());
    }

    /// Two 16-bit words in a row, at an even offset, became others.
    #[inline(always)]
    pub fn words(&mut self, old: [u8; 4], new: [u8; 4]) {
        self.0 += u64::from(!u32::from_ne_bytes(old)) + u64::from(u32::from_ne_bytes(new));
    }

    /// An IPv6 address, at an even offset, became another.
    #[inline(always)]
    pub fn address(&mut self, old: &[u8; 16], new: &[u8; 16]) {
        for (old, new) in old.as_chunks::<4>().0.iter().zip(new.as_chunks::<4>().0) {
            self.words(*old, *new);
        }
    }

    /// The checksum that was `checksum` before the changes: HC' = ~(~HC + ~m + m'). Never 0xffff.
    #[inline(always)]
    pub fn update(self, checksum: u16) -> u16 {
        u16::from_be(!fold(self.0 + u64::from(!checksum.to_be()) + 0xffff))
    }

    /// The sum (not complemented) that was `sum` before the changes, as a packet holds whose checksum a device fills
    /// in.
    #[inline(always)]
    pub fn update_partial(self, sum: u16) -> u16 {
        u16::from_be(fold(self.0 + u64::from(sum.to_be())))
    }
}

impl core::ops::AddAssign for Difference {
    fn add_assign(&mut self, other: Difference) {
        self.0 += other.0;
    }
}

/// A [`Difference`] of a few words: up to a dozen of 16 bits, so that a machine word of half the size has room for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewWords(u32);

impl FewWords {
    /// Two 16-bit words in a row, at an even offset, became others.
    #[inline(always)]
    pub(crate) fn words(old: [u8; 4], new: [u8; 4]) -> FewWords {
        let (sum, carry) = (!u32::from_ne_bytes(old)).overflowing_add(u32::from_ne_bytes(new));
        let sum = sum + u32::from(carry);
        FewWords((sum & 0xffff) + (sum >> 16))
    }

    /// A 16-bit word at an even offset became another.
    #[inline(always)]
    pub(crate) fn word(old: u16, new: u16) -> FewWords {
        FewWords(0xffff - u32::from(old.to_be()) + u32::from(new.to_be()))
    }

    /// [`Difference::update`].
    #[inline(always)]
    pub(crate) fn update(self, checksum: u16) -> u16 {
        u16::from_be(!fold_few(self.0 + (2 * 0xffff - u32::from(checksum.to_be()))))
    }

    /// [`FewWords::update`] for the checksum of an IPv4 header that has lost a hop besides.
    #[inline(always)]
    pub(crate) fn update_header(self, checksum: u16) -> u16 {
        FewWords(self.0 + Difference::ONE_HOP.0 as u32).update(checksum)
    }

    /// [`Difference::update_partial`].
    #[inline(always)]
    pub(crate) fn update_partial(self, sum: u16) -> u16 {
        u16::from_be(fold_few(self.0 + u32::from(sum.to_be())))
    }
}

impl core::ops::Add for FewWords {
    type Output = FewWords;
    #[inline(always)]
    fn add(self, other: FewWords) -> FewWords {
        FewWords(self.0 + other.0)
    }
}

/// [`fold`] of half a word.
#[inline(always)]
fn fold_few(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Adds the 16-bit words of `sum` with end-around carry: 0 only for 0. A number plus itself with its halves exchanged has
/// their sum in its upper half, with what the lower half carries over.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    fold_few(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071, section 4.1, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// The kernel's `csum_add`.
    fn csum_add(a: u32, b: u32) -> u32 {
        let (sum, carry) = a.overflowing_add(b);
        sum + u32::from(carry)
    }

    /// The kernel's `csum_fold` (arch-independent form).
    fn csum_fold(sum: u32) -> u16 {
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }

    /// The kernel's `csum_replace4`: csum_fold(csum_add(csum_sub(~csum_unfold(*sum), from), to)).
    fn csum_replace4(sum: u16, from: u32, to: u32) -> u16 {
        csum_fold(csum_add(csum_add(!u32::from(sum), !from), to))
    }

    /// The kernel's change of a partial sum in `inet_proto_csum_replace4`.
    fn csum_replace4_partial(sum: u16, from: u32, to: u32) -> u16 {
        !csum_fold(csum_add(csum_add(u32::from(sum), !from), to))
    }

    #[test]
    fn example_of_rfc_1071() {
        let words = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&words).folded(), 0xddf2);
    }

    #[test]
    fn example_of_rfc_1624() {
        // Section 4: HC = 0xdd2f, m = 0x5555, m' = 0x3285 gives 0x0000, not 0xffff.
        let mut difference = Difference::NONE;
        difference.word(0x5555, 0x3285);
        assert_eq!(difference.update(0xdd2f), 0x0000);
    }

    #[test]
    fn no_change_of_negative_zero_gives_zero_as_in_the_kernel() {
        assert_eq!(csum_replace4(0xffff, 0xffff_ffff, 0), 0);
        let mut difference = Difference::NONE;
        difference.words([0xff; 4], [0; 4]);
        assert_eq!(difference.update(0xffff), 0);
        assert_eq!(Difference::NONE.update(0xffff), 0);
        assert_eq!(difference.update_partial(0), csum_replace4_partial(0, 0xffff_ffff, 0));
    }

    proptest! {
        #[test]
        fn sum_is_the_reference_sum(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Sum::of(&bytes).folded(), reference(&bytes));
        }

        #[test]
        fn a_header_is_right_if_its_sum_is(mut header in any::<[u8; 20]>(), fill in any::<bool>(), ones in 0usize..20) {
            // Performs of words, too.
            header[..ones].fill(0xff);
            if fill {
                header[10..12].fill(0);
                let checksum = (!reference(&header)).to_be_bytes();
                header[10..12].copy_from_slice(&checksum);
            }
            let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
            let two_words = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            prop_assert_eq!(Sum::is_right(two_words(0), two_words(8), word(16)), reference(&header) == 0xffff);
        }

        #[test]
        fn update_is_the_kernels(sum in corner16(),
                                 changes in proptest::collection::vec((corner32(), corner32()), 1..8)) {
            let mut difference = Difference::NONE;
            let (mut complete, mut partial) = (sum, sum);
            for (from, to) in changes {
                difference.words(from.to_be_bytes(), to.to_be_bytes());
                complete = csum_replace4(complete, from, to);
                partial = csum_replace4_partial(partial, from, to);
            }
            prop_assert_eq!(difference.update(sum), complete);
            if partial != 0 {
                prop_assert_eq!(difference.update_partial(sum), partial);
            }
        }

        #[test]
        fn few_words_are_as_many(
            sum in corner16(),
            [(from, to), (other_from, other_to)] in [(corner32(), corner32()), (corner32(), corner32())],
        ) {
            let [other_from, other_to] = [other_from as u16, other_to as u16];
            let few = FewWords::words(from.to_be_bytes(), to.to_be_bytes());
            let mut difference = Difference::NONE;
            difference.words(from.to_be_bytes(), to.to_be_bytes());
            prop_assert_eq!(few.update_partial(sum), difference.update_partial(sum));
            let mut header = difference;
            header += Difference::ONE_HOP;
            prop_assert_eq!(few.update_header(sum), header.update(sum));
            difference.word(other_from, other_to);
            prop_assert_eq!((few + FewWords::word(other_from, other_to)).update(sum), difference.update(sum));
        }

        #[test]
        fn update_is_a_new_computation(mut bytes in proptest::collection::vec(any::<u8>(), 40),
                                       at in 0usize..20, new in any::<u16>()) {
            let before = Sum::of(&bytes).checksum();
            let old = u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]]);
            bytes[2 * at..2 * at + 2].copy_from_slice(&new.to_be_bytes());
            let mut difference = Difference::NONE;
            difference.word(old, new);
            // Equal but for the two zeros.
            prop_assert_eq!(difference.update(before) % 0xffff, Sum::of(&bytes).checksum() % 0xffff);
        }
    }

    fn corner16() -> impl Strategy<Value = u16> {
        prop_oneof![Just(0u16), Just(0xffff), Just(0xfffe), Just(1), any::<u16>()]
    }

    fn corner32() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0u32), Just(u32::MAX), Just(0xffff_0000), Just(0xffff), any::<u32>()]
    }

    #[test]
    fn sums_of_parts_add_up() {
        let bytes: Vec<u8> = (0..=255).collect();
        for at in (0..256).step_by(2) {
            let (a, b) = bytes.split_at(at);
            assert_eq!((Sum::of(a) + Sum::of(b)).folded(), Sum::of(&bytes).folded());
        }
    }
}
