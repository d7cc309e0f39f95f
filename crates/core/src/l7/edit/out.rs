//! A head that is being written.

use super::NoRoom;
use crate::flow::Address;
use core::fmt::{self, Write};
use core::net::IpAddr;

/// The head so far. What does not fit is remembered, not written: [`Out::end`] tells.
pub(in super::super) struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
    full: bool,
}

impl<'a> Out<'a> {
    pub(in super::super) fn new(bytes: &'a mut [u8]) -> Out<'a> {
        Out { bytes, at: 0, full: false }
    }

    /// How many bytes were written.
    pub(in super::super) fn end(self) -> Result<usize, NoRoom> {
        if self.full { Err(NoRoom) } else { Ok(self.at) }
    }

    #[inline]
    pub(in super::super) fn put(&mut self, text: &[u8]) {
        match self.bytes.get_mut(self.at..).and_then(|rest| rest.get_mut(..text.len())) {
            Some(room) => {
                room.copy_from_slice(text);
                self.at += text.len();
            }
            None => self.full = true,
        }
    }

    /// Bytes written so far.
    pub(in super::super) fn len(&self) -> usize {
        self.at
    }

    /// A field.
    #[inline]
    pub(in super::super) fn field(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len() + 4;
        let Some(room) = self.bytes.get_mut(self.at..).and_then(|rest| rest.get_mut(..length)) else {
            self.full = true;
            return;
        };
        let (own, room) = room.split_at_mut(name.len());
        own.copy_from_slice(name);
        room[..2].copy_from_slice(b": ");
        let (own, room) = room[2..].split_at_mut(value.len());
        own.copy_from_slice(value);
        room.copy_from_slice(b"\r\n");
        self.at += length;
    }

    /// A name from the configuration, which may hold bytes that do not fit in a field: each of them becomes `_`.
    pub(in super::super) fn name(&mut self, name: &str) {
        for &byte in name.as_bytes() {
            let plain = (byte.is_ascii_graphic() || byte == b' ') && !matches!(byte, b'"' | b'\\');
            self.put(&[if plain { byte } else { b'_' }]);
        }
    }

    /// Text of which only visible ASCII and spaces may reach a field: every other byte becomes `_`.
    pub(in super::super) fn text(&mut self, text: &[u8]) {
        for &byte in text {
            self.put(&[if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'_' }]);
        }
    }

    /// A number in decimal digits.
    pub(in super::super) fn number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        let mut rest = number;
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.put(&digits[first..]);
    }

    /// A number as 16 hexadecimal digits.
    pub(in super::super) fn hexadecimal(&mut self, number: u64) {
        let digits: [u8; 16] = core::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15]);
        self.put(&digits);
    }

    /// Bytes as two hexadecimal digits each.
    pub(in super::super) fn octets(&mut self, octets: &[u8]) {
        for octet in octets {
            let digit = |at: u8| b"0123456789abcdef"[usize::from(at & 15)];
            self.put(&[digit(octet >> 4), digit(*octet)]);
        }
    }

    /// An address, without brackets.
    pub(in super::super) fn address(&mut self, address: &Address) {
        match IpAddr::from(*address) {
            IpAddr::V4(v4) => {
                for (at, &octet) in v4.octets().iter().enumerate() {
                    if at > 0 {
                        self.put(b".");
                    }
                    self.number(octet.into());
                }
            }
            // Room is never short of in a way that `put` does not remember.
            IpAddr::V6(v6) => write!(self, "{v6}").unwrap_or_default(),
        }
    }
}

impl fmt::Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
