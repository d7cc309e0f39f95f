//! Cores that share a table, by method and cores: `sharing PROFILE.toml [FACTOR [NEW]]`. Gbit/s, percent of the time in waiting
//! for a lock, mean round trip in microseconds; lines cost FACTOR times what the profile says, and NEW is the part of clients'
//! packets that begin a flow.

use hairpin_sim::sharing::{SharingMethod, SharingOptions, SharingProfile, simulate};

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("name a profile of lab/profiles/sharing")?;
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut profile = SharingProfile::parse(&text)?;
    let number =
        |at: usize| arguments.get(at).map(|text| text.parse::<f64>().map_err(|error| format!("{text}: {error}")));
    let factor = number(1).transpose()?.unwrap_or(1.0);
    (profile.line.transfer_ns, profile.line.clean_ns) =
        (profile.line.transfer_ns * factor, profile.line.clean_ns * factor);
    profile.packets.new = number(2).transpose()?.unwrap_or(profile.packets.new);
    for method in SharingMethod::ALL.into_iter().filter(|method| profile.of(*method).is_some()) {
        print!("{method:28}");
        for cores in 1..=8 {
            let profile = profile.clone();
            let (warm_up, seconds) = (0.002, 0.004);
            let options = SharingOptions { profile, method, cores, offered_pps: None, warm_up, seconds, seed: 1 };
            let came = simulate(&options)?;
            let gbit = came.received_pps * f64::from(options.profile.packets.frame) * 8.0 / 1e9;
            print!(" {gbit:5.1} {:2.0}% {:4.0}", came.waiting * 100.0, came.round_trip.mean / 1e3);
        }
        println!();
    }
    Ok(())
}
