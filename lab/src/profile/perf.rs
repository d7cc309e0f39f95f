//! `perf record` over the threads of a device.

use super::symbols::Symbols;
use crate::testbed::TimeProfile;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Looks a second at each thread; no divisor of the timer's.
const FREQUENCY: &str = "1999";
/// The counted event.
const EVENT: &str = "cpu-clock";
/// Looks that a profile needs at least.
const SAMPLES_MIN: u64 = 100;
/// Functions kept by name; the rest is summed up.
const FUNCTIONS_MAX: usize = 40;
/// The longest that perf may take to write its file.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Why no profile can be taken on this machine; `None` if one can.
pub fn obstacle() -> Option<String> {
    let run = Command::new("perf")
        .args(["record", "-q", "-e", EVENT, "-o", "/dev/null", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    match run {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed").to_owned();
            Some(format!("perf cannot look here: {said}"))
        }
        Err(error) => Some(format!("there is no perf (Debian's package linux-perf): {error}")),
    }
}

/// A running profiler.
#[derive(Debug)]
pub struct Profiler {
    perf: Child,
    data: PathBuf,
}

impl Profiler {
    /// Begins to sample these threads.
    ///
    /// # Errors
    /// When perf cannot be started.
    pub fn start(threads: &[u32]) -> Result<Profiler> {
        ensure!(!threads.is_empty(), "there is no thread to look at");
        // Unique as long as this process has one at a time of each thread.
        let data = std::env::temp_dir().join(format!("hairpin-lab-{}-{}.perf", std::process::id(), threads[0]));
        let threads = threads.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-e", EVENT, "-F", FREQUENCY, "-t", &threads, "-o"]).arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let perf = command.spawn().context("could not start perf (Debian's package linux-perf)")?;
        Ok(Profiler { perf, data })
    }

    /// Ends it, and says what it has seen.
    ///
    /// # Errors
    /// When perf failed, or saw too little.
    pub fn finish(mut self) -> Result<TimeProfile> {
        if let Ok(pid) = i32::try_from(self.perf.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // It may have ended by itself, with its threads.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let begun = Instant::now();
        while self.perf.try_wait().context("perf")?.is_none() {
            ensure!(begun.elapsed() < END_TIMEOUT, "perf did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut script = Command::new("perf");
        script.arg("script").arg("-i").arg(&self.data).args(["-F", "ip,sym", "--no-inline"]).stdin(Stdio::null());
        let output = script.output().context("perf script")?;
        ensure!(output.status.success(), "perf script: {}", String::from_utf8_lossy(&output.stderr).trim());
        let (samples, shares) = count(&String::from_utf8_lossy(&output.stdout), Symbols::own().as_ref());
        ensure!(samples >= SAMPLES_MIN, "perf saw the device only {samples} times");
        Ok(TimeProfile { by: format!("perf record -e {EVENT} -F {FREQUENCY}, {samples} looks"), shares })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if matches!(self.perf.try_wait(), Ok(None)) {
            let _ = self.perf.kill();
            let _ = self.perf.wait();
        }
        // It is not there if perf could not write it.
        let _ = std::fs::remove_file(&self.data);
    }
}

/// Counts what `perf script -F ip,sym` has printed, a line for each sample: address and symbol. How many, and each
/// function's share, the largest first.
fn count(text: &str, symbols: Option<&Symbols>) -> (u64, Vec<(String, f64)>) {
    let mut addresses: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim();
        let (address, symbol) = line.split_once(' ').unwrap_or((line, "[unknown]"));
        if let Ok(address) = u64::from_str_radix(address, 16) {
            *addresses.entry((address, symbol.trim())).or_default() += 1;
        }
    }
    let samples: u64 = addresses.values().sum();
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    for ((address, symbol), count) in addresses {
        let name = match symbols.and_then(|symbols| symbols.name(address)) {
            Some(name) => name,
            // The kernel's half of the addresses.
            None if address >> 63 == 1 => format!("[k] {symbol}"),
            None => symbol.to_owned(),
        };
        *functions.entry(name).or_default() += count;
    }
    let mut shares: Vec<(String, u64)> = functions.into_iter().collect();
    shares.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest: u64 = shares.iter().skip(FUNCTIONS_MAX).map(|(_, count)| count).sum();
    shares.truncate(FUNCTIONS_MAX);
    if rest > 0 {
        shares.push(("(many others)".to_owned(), rest));
    }
    (samples, shares.into_iter().map(|(name, count)| (name, count as f64 / samples.max(1) as f64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_counted_by_function() {
        let text =
            "    7f00aa rte_hash_lookup\n  7f00bb rte_hash_lookup\n ffffffff81000000 do_idle\n   7f00cc [unknown]\n\n";
        let (samples, shares) = count(text, None);
        assert_eq!(samples, 4);
        assert_eq!(shares[0], ("rte_hash_lookup".to_owned(), 0.5));
        assert!(shares.contains(&("[k] do_idle".to_owned(), 0.25)), "{shares:?}");
        assert_eq!(count("", None), (0, Vec::new()));
    }

    #[test]
    fn what_is_seldom_is_summed_up() {
        let text: String = (0..100).map(|i| format!("{i:x} f{i:03}\n")).collect();
        let (samples, shares) = count(&text, None);
        assert_eq!((samples, shares.len()), (100, FUNCTIONS_MAX + 1));
        assert!((shares.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    /// This very thread, at work: skipped, and said, where there is no perf.
    #[test]
    fn a_thread_at_work_is_seen() {
        if let Some(reason) = obstacle() {
            eprintln!("skipped: {reason}");
            return;
        }
        let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        // perf takes its time to begin where others use the machine.
        let profile = [2, 8, 32].into_iter().find_map(|seconds| {
            let profiler = Profiler::start(&[thread]).unwrap();
            let begun = Instant::now();
            let mut sum = 0_u64;
            while begun.elapsed() < Duration::from_secs(seconds) {
                sum = std::hint::black_box(work(sum));
            }
            profiler.finish().ok()
        });
        let profile = profile.unwrap();
        let work = profile.shares.iter().find(|(name, _)| name.contains("perf::work"));
        assert!(work.is_some_and(|(_, share)| *share > 0.3), "{profile:?}");
    }

    #[inline(never)]
    fn work(from: u64) -> u64 {
        let (mut sum, mut turns) = (from, 0_u64);
        while turns < 100_000 {
            sum = sum.rotate_left(7) ^ turns;
            turns += 1;
        }
        sum
    }
}
