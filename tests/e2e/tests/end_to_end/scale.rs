//! How much of their load tests of survival drive here. On the machines they were made for it is all of it; an emulated
//! one would be too busy with it to show anything else.

use std::net::UdpSocket;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A datagram to another thread and back takes less than this where the whole load fits.
const WHOLE: Duration = Duration::from_micros(100);
/// The time it takes on the machines that the load was made for, two cores of a server: 10 to 50 µs. Slower ones than `WHOLE`
/// get a load in proportion to this, so that they are about as busy.
const USUAL: Duration = Duration::from_micros(25);
const LEAST: f64 = 0.05;

/// The share of the whole load, 0.05 to 1: `HAIRPIN_LOAD`, or as measured when first asked for.
pub(crate) fn share() -> f64 {
    static SHARE: OnceLock<f64> = OnceLock::new();
    *SHARE.get_or_init(|| {
        let told = std::env::var("HAIRPIN_LOAD").ok().and_then(|text| text.parse::<f64>().ok());
        let (share, why) = told.map_or_else(measured, |share| (share, "HAIRPIN_LOAD".to_owned()));
        let share = share.clamp(LEAST, 1.0);
        if share < 1.0 {
            eprintln!("survival tests drive {share:.2} of their load here ({why})");
        }
        share
    })
}

/// `number` of them on the whole load, never fewer than `least`.
pub(crate) fn scaled(number: usize, least: usize) -> usize {
    ((number as f64 * share()) as usize).max(least)
}

/// The load consists of system calls, the kernel's network and changes of threads. The best of many batches counts: what
/// else runs on the machine takes nothing off the load.
fn measured() -> (f64, String) {
    const BATCHES: u32 = 30;
    const TRIPS: u32 = 50;
    let Ok(best) = best_batch(BATCHES, TRIPS) else { return (1.0, "not measured".to_owned()) };
    let trip = best / TRIPS;
    let share = if trip < WHOLE { 1.0 } else { USUAL.as_secs_f64() / trip.as_secs_f64() };
    (share, format!("a datagram over loopback and back takes {trip:?}"))
}

fn best_batch(batches: u32, trips: u32) -> std::io::Result<Duration> {
    let (here, there) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    here.connect(there.local_addr()?)?;
    there.connect(here.local_addr()?)?;
    here.set_read_timeout(Some(Duration::from_secs(1)))?;
    there.set_read_timeout(Some(Duration::from_secs(1)))?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        for _ in 0..batches * trips {
            if there.recv(&mut byte).and_then(|_| there.send(&byte)).is_err() {
                break;
            }
        }
    });
    let mut best = Duration::MAX;
    for _ in 0..batches {
        let began = Instant::now();
        for _ in 0..trips {
            here.send(&[0])?;
            here.recv(&mut [0])?;
        }
        best = best.min(began.elapsed());
    }
    let _ = echo.join();
    Ok(best)
}
