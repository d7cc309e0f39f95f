//! A TUN device as smoltcp sees devices: one packet that has arrived, and a way out.
#![allow(unsafe_code)]

use anyhow::{Context, Result, bail};
use nix::libc;
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Bytes of a packet at most.
const PACKET_MAX: usize = 65_536;

/// The device, which is gone when this is dropped.
#[derive(Debug)]
pub(super) struct TunDevice {
    file: File,
    mtu: usize,
    /// The packet that has arrived, until it is taken.
    packet: Vec<u8>,
    length: usize,
    /// Where a packet is put together.
    departing: Vec<u8>,
}

impl TunDevice {
    /// Makes the device `name`. Its addresses, MTU and state are the caller's business.
    pub(super) fn create(name: &str, mtu: usize) -> Result<TunDevice> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            bail!("a device cannot be called \"{name}\"");
        }
        let path = "/dev/net/tun";
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).context(path)?;
        // SAFETY: all zero is a valid value of its integers, pointers and arrays.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request lives through the call, which reads its name and its flags.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| format!("cannot make the TUN device {name}"));
        }
        Ok(TunDevice { file, mtu, packet: vec![0; PACKET_MAX], length: 0, departing: vec![0; PACKET_MAX] })
    }

    /// Reads a packet; `false` if there is none.
    pub(super) fn read(&mut self) -> Result<bool> {
        match self.file.read(&mut self.packet) {
            Ok(length) => self.length = length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.length = 0,
            // The device is not up yet.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => self.length = 0,
            Err(error) => return Err(error).context("cannot read the TUN device"),
        }
        Ok(self.length > 0)
    }

    /// The packet that has arrived.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.packet[..self.length]
    }

    pub(super) fn drop_arrived(&mut self) {
        self.length = 0;
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The packet that has arrived.
pub(super) struct Arrived<'a>(&'a [u8]);

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_packet: F) -> R {
        use_packet(self.0)
    }
}

/// Room for a packet that leaves.
pub(super) struct Departure<'a> {
    file: &'a File,
    buffer: &'a mut [u8],
}

impl TxToken for Departure<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let packet = &mut self.buffer[..length];
        let result = fill(packet);
        // What the kernel does not take is lost, as on a wire; TCP repeats it.
        let _ = { self.file }.write(packet);
        result
    }
}

impl Device for TunDevice {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Departure<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Departure<'_>)> {
        let length = std::mem::take(&mut self.length);
        let departure = Departure { file: &self.file, buffer: &mut self.departing };
        (length > 0).then_some((Arrived(&self.packet[..length]), departure))
    }

    fn transmit(&mut self, _: Instant) -> Option<Departure<'_>> {
        Some(Departure { file: &self.file, buffer: &mut self.departing })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = ChecksumCapabilities::default();
        // The kernel has checked or made them.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}
