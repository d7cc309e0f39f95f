//! `hairpin probe`: what a DPDK device can do for a flow engine, and which services stay in software, and why.

use anyhow::Result;

/// The arguments of a probe.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// The device by its EAL name: a PCI address, or a virtual one with its arguments.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Try rules by putting them in and taking them out again, rather than only ask. Not on a device in use.
    #[arg(long)]
    create: bool,
    /// Also print the rules that were tried, as rte_flow's items and actions.
    #[arg(long)]
    rules: bool,
    /// Put so many rules in and take them out again, by batches of 1, 8, 64 and 512, and say how long it takes.
    #[arg(long, value_name = "RULES", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
}

/// Opens the device, tries, and tells; `json` for programs.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(_: &ProbeArgs, _json: bool) -> Result<String> {
    anyhow::bail!("`hairpin probe` needs a Hairpin built with DPDK (cargo feature `dpdk`)")
}

#[cfg(feature = "dpdk")]
pub(crate) use with_dpdk::run;

#[cfg(feature = "dpdk")]
mod with_dpdk {
    use super::{ProbeArgs, Result};
    use hairpin_dpdk::flow::{
        Attempt, DeviceTerms, Does, EgressAction, EnginePort, Findings, How, Necessity, ProbeDepth, Probed, Submission,
        trial,
    };
    use hairpin_dpdk::{Eal, EalOptions, EalPages, MbufPool, PoolOptions, Port, PortOptions};
    use serde::Serialize;
    use std::time::Duration;

    /// Address space for DPDK itself.
    const MEMORY_MIB: u32 = 256;
    /// Buffers: as many as a port's receive queue holds, and some.
    const MBUFS: u32 = 4096;

    /// Rules asked for at once.
    const BATCHES: [u32; 4] = [1, 8, 64, 512];

    /// The results, for programs.
    #[derive(Debug, Serialize)]
    struct ProbeReport {
        device: String,
        driver: String,
        mtu: u16,
        hairpin_queues: u16,
        /// The terms of the engine that there would be.
        engine: Option<EngineReport>,
        #[serde(skip)]
        terms: Option<DeviceTerms>,
        services: Vec<ServiceReport>,
        tried: Vec<Tried>,
        rates: Vec<RuleRate>,
        #[serde(skip)]
        has_no_rules: bool,
    }

    /// How long rules took, by batch.
    #[derive(Debug, Serialize)]
    struct RuleRate {
        submission: &'static str,
        batch: u32,
        asked: u32,
        installed: u32,
        counted: u32,
        removed: u32,
        install_us_each: f64,
        remove_us_each: f64,
        trouble: Option<String>,
    }

    #[derive(Debug, Serialize)]
    struct EngineReport {
        egress: &'static str,
        /// `egress` in a plane that has other ports too, as far as this port can tell.
        egress_between_ports: Option<&'static str>,
        changes: &'static str,
        groups: bool,
        templates: bool,
        counts: &'static str,
        translates_sequence_numbers: bool,
    }

    #[derive(Debug, Serialize)]
    struct ServiceReport {
        kind: &'static str,
        offloaded: bool,
        why_not: Option<String>,
    }

    #[derive(Debug, Serialize)]
    struct Tried {
        what: String,
        works: bool,
        needed: &'static str,
        refusal: Option<String>,
        without_it: Option<&'static str>,
        rule: Option<String>,
    }

    pub(crate) fn run(args: &ProbeArgs, json: bool) -> Result<String> {
        let pci = !args.device.starts_with("net_");
        let eal = Eal::start(EalOptions { memory_mib: MEMORY_MIB, pages: EalPages::Auto, pci })?;
        let pool =
            MbufPool::create(&eal, PoolOptions { name: "probe".into(), mbufs: MBUFS, ..PoolOptions::default() })?;
        let options = PortOptions { device: args.device.clone(), ..PortOptions::default() };
        let port = Port::open(&eal, &options, &pool)?;
        #[cfg(feature = "fake-flow")]
        crate::fake_flow::stand_in(&port)?;
        let depth = if args.create { ProbeDepth::Create } else { ProbeDepth::Validate };
        let Probed { port, findings, no_hairpins } = Probed::of(&eal, port, (&options, &pool), (0, depth), &[])?;
        if let Some(error) = no_hairpins {
            eprintln!("no hairpin queue, though the driver says that there are some: {error}");
        }
        let mut report = report(&port, &findings, args.rules);
        report.rates = rates(eal, &port, &findings, args.rate);
        if json { Ok(crate::json::line(&report)?) } else { Ok(render(&report)) }
    }

    fn report(port: &Port, findings: &Findings, rules: bool) -> ProbeReport {
        let engine = findings.terms.map(|terms| EngineReport {
            egress: terms.egress.name(),
            egress_between_ports: findings.between_ports().map(EgressAction::name),
            changes: if terms.how.has(How::MODIFY) { "MODIFY_FIELD" } else { "SET" },
            groups: terms.jumps,
            templates: findings.templates,
            counts: match terms.counts {
                Does::COUNT => "COUNT",
                Does::AGE => "AGE",
                _ => "no",
            },
            translates_sequence_numbers: terms.sequence_numbers.has(Does::SEQUENCE_NUMBERS),
        });
        let services = findings.services().into_iter();
        let services =
            services.map(|(kind, why_not)| ServiceReport { kind, offloaded: why_not.is_none(), why_not }).collect();
        ProbeReport {
            device: port.name().to_string(),
            driver: port.driver().to_string(),
            mtu: port.mtu(),
            hairpin_queues: findings.hairpin_queues,
            engine,
            terms: findings.terms,
            services,
            rates: Vec::new(),
            has_no_rules: findings.has_no_rules(),
            tried: findings.attempts.iter().map(|attempt| tried(attempt, rules)).collect(),
        }
    }

    /// The time that rules take by each method, by batch.
    fn rates(eal: Eal, port: &Port, findings: &Findings, rules: Option<u32>) -> Vec<RuleRate> {
        let (Some(rules), Some(terms)) = (rules, findings.terms) else { return Vec::new() };
        let submissions = [("one at a time", Submission::Synchronous), ("templates", Submission::Templates)];
        let submissions = submissions
            .into_iter()
            .filter(|(_, submission)| findings.templates || *submission == Submission::Synchronous);
        let mut rates = Vec::new();
        for (name, submission) in submissions {
            for batch in BATCHES {
                let engine_port = EnginePort::of(0, port);
                let each = |time: Duration, count: u32| time.as_secs_f64() * 1e6 / f64::from(count.max(1));
                let mut rate = RuleRate {
                    submission: name,
                    batch,
                    asked: rules,
                    installed: 0,
                    counted: 0,
                    removed: 0,
                    install_us_each: 0.0,
                    remove_us_each: 0.0,
                    trouble: None,
                };
                match trial(Some(eal), (&engine_port, port.mac()), (terms, submission), (rules, batch)) {
                    Ok(found) => {
                        (rate.installed, rate.counted, rate.removed) = (found.installed, found.counted, found.removed);
                        rate.install_us_each = each(found.installing, found.installed);
                        rate.remove_us_each = each(found.removing, found.removed);
                        rate.trouble = match (found.silent, found.refusal) {
                            (true, _) => Some("the device stopped answering".into()),
                            (false, Some(refusal)) => Some(format!("refused: {refusal:?}")),
                            (false, None) => None,
                        };
                    }
                    Err(error) => rate.trouble = Some(error.to_string()),
                }
                rates.push(rate);
            }
        }
        rates
    }

    fn tried(attempt: &Attempt, rules: bool) -> Tried {
        let refusal = attempt.outcome.as_ref().err().map(ToString::to_string);
        Tried {
            what: attempt.subject.to_string(),
            works: refusal.is_none(),
            needed: match attempt.subject.needed() {
                Necessity::Yes => "yes",
                Necessity::OneOf => "or another",
                Necessity::No => "no",
            },
            without_it: refusal.is_some().then(|| attempt.subject.without()),
            refusal,
            rule: attempt.rule.filter(|_| rules).and_then(|rule| rule.arrays(false).ok()),
        }
    }

    fn render(report: &ProbeReport) -> String {
        let mut out = format!("{}: driver {}, MTU {}\n", report.device, report.driver, report.mtu);
        match report.hairpin_queues {
            0 => out += "hairpin queues: none\n",
            queues => out += &format!("hairpin queues: {queues} at most\n"),
        }
        out += "\nTRIED (by rte_flow; not yet run on hardware)\n";
        if report.has_no_rules {
            out += "  no   anything: the driver has no rules\n";
        } else {
            report.tried.iter().for_each(|tried| render_tried(&mut out, tried));
        }
        out += "\nENGINE\n";
        out += &match (&report.engine, &report.terms) {
            (Some(engine), Some(terms)) => {
                let submission = if engine.templates { "templates" } else { "one rule at a time" };
                format!("  {terms}; {submission}\n{}", between_ports(engine, terms))
            }
            _ => "  none\n".to_string(),
        };
        out += "\nSERVICES\n";
        for service in &report.services {
            match &service.why_not {
                None => out += &format!("  {}: offloaded\n", service.kind),
                Some(why) => out += &format!("  {}: in software: {why}\n", service.kind),
            }
        }
        if !report.rates.is_empty() {
            out += "\nRATES (microseconds a rule)\n";
        }
        for rate in &report.rates {
            out += &format!(
                "  {}, batches of {}: in {:.2}, out {:.2}; {} of {} in, {} counted, {} out{}\n",
                rate.submission,
                rate.batch,
                rate.install_us_each,
                rate.remove_us_each,
                rate.installed,
                rate.asked,
                rate.counted,
                rate.removed,
                rate.trouble.iter().map(|trouble| format!("; {trouble}")).collect::<String>(),
            );
        }
        out
    }

    /// Says which abilities it loses beside other ports, to which hairpin queues do not lead.
    fn between_ports(engine: &EngineReport, terms: &DeviceTerms) -> String {
        match engine.egress_between_ports {
            _ if terms.egress != EgressAction::Hairpin => String::new(),
            Some(egress) => format!("  beside other ports packets leave by {egress}, where it leads to them\n"),
            None => {
                "  beside other ports nothing is offloaded: hairpin queues lead back out of their own\n".to_string()
            }
        }
    }

    fn render_tried(out: &mut String, tried: &Tried) {
        match &tried.refusal {
            None => *out += &format!("  yes  {}\n", tried.what),
            Some(refusal) => {
                *out += &format!("  no   {}: {refusal}\n", tried.what);
                *out += &format!("         {}\n", tried.without_it.unwrap_or_default());
            }
        }
        for line in tried.rule.iter().flat_map(|rule| rule.lines()) {
            *out += &format!("         {line}\n");
        }
    }
}
