//! The sections of the dpdk plane.

use super::Fallback::{From, Required, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[dpdk]`
pub const DPDK: ReferenceSection = ReferenceSection {
    header: "[dpdk]",
    doc: "The dpdk plane (`plane = \"dpdk\"`): ports that Hairpin drives itself, without the kernel. See docs/guide/dpdk.md.",
    fields: &[
        field(
            "pages",
            ValueForm::Choice(&[
                ("auto", "reserved hugepages where there are enough, else ordinary ones"),
                ("huge", "reserved hugepages; refuse to start without them. Most network cards need them"),
                ("none", "ordinary ones: enough for the kernel's devices (af_packet, tap) and memif"),
            ]),
            Value("auto"),
            "\"huge\"",
            "What DPDK's memory stands on.",
        ),
        field(
            "memory",
            ValueForm::Text,
            Value("512 MiB"),
            "\"2 GiB\"",
            "Memory of DPDK's own on ordinary pages: what drivers take, and packet buffers where PCI devices fetch from them. \
             Hugepages are taken as they are needed, and virtual devices' packet buffers beside it. A number and MiB or GiB, \
             64 MiB to 1024 GiB.",
        ),
        field(
            "mbufs",
            ValueForm::IntegerOrAuto { min: 512, max: 16_777_215 },
            Value("auto"),
            "65535",
            "Packet buffers. `\"auto\"`: what the ports' rings can hold, and as much again and 8,192 for what is under \
             way. One takes a frame of the largest `mtu`, 2,048 bytes at least, and some 300 bytes more.",
        ),
        field(
            "idle",
            ValueForm::Choice(&[
                ("sleep", "rest for up to 200 microseconds at a time: some latency, hardly any processor time"),
                ("poll", "look again at once: the least latency, and all of a core for each worker"),
            ]),
            Value("sleep"),
            "\"poll\"",
            "What a worker does while nothing comes in. Under load both are the same.",
        ),
        field(
            "marks",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether connections get rules that mark their packets, on ports whose cards can do that and cannot reflect \
             packets: a worker then knows a packet's connection without looking it up. It costs two rules for each connection; \
             in the measurements of KTH 2020 that was more than it saved.",
        ),
        field(
            "port_rules",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether rules of the ports bring both directions of a connection to its worker's queue, where their cards take such rules \
             and every worker has a queue: no packet then has to be handed from worker to worker. Some bits of the client's \
             port decide whose a connection is, so clients can choose their worker. Not yet run on hardware.",
        ),
        field(
            "health",
            ValueForm::Choice(&[
                (
                    "none",
                    "refuse services with `check`: no socket reaches backends through ports that are not the kernel's",
                ),
                (
                    "kernel",
                    "let them be checked over the kernel's own interfaces, which reach the backends another way",
                ),
            ]),
            Value("none"),
            "\"kernel\"",
            "What is done about health checks that need a socket. What clients' connections show (`passive`) needs none.",
        ),
        field(
            "routes",
            ValueForm::Texts,
            From("none"),
            "[\"10.9.0.0/16 via 10.0.1.254\"]",
            "Routes beside those that follow from the ports' addresses and gateways: `network/prefix via gateway`, the \
             gateway in a network of one of the ports. 256 at most.",
        ),
        field("port", ValueForm::Tables, Required, "", "See [[dpdk.port]]."),
    ],
};

/// `[[dpdk.port]]`
pub const DPDK_PORT: ReferenceSection = ReferenceSection {
    header: "[[dpdk.port]]",
    doc: "A port: those that face clients and those that face backends. Hairpin alone owns it: it answers and asks ARP \
          and neighbour discovery there, and answers echo requests, for its own addresses, the services' and the pool's. \
          1 to 16.",
    fields: &[
        field(
            "device",
            ValueForm::Text,
            Required,
            "\"net_af_packet0,iface=eth1\"",
            "The device as DPDK names it: a PCI address (\"0000:03:00.0\", bound to vfio-pci or of a bifurcated driver) or \
             a virtual device and its arguments.",
        ),
        field(
            "addresses",
            ValueForm::Networks,
            Required,
            "[\"10.0.0.1/24\", \"fd00::1/64\"]",
            "The port's own addresses, each with the length of its network's prefix; hosts of these networks are reached \
             directly. 16 at most.",
        ),
        field(
            "gateway",
            ValueForm::Texts,
            From("none"),
            "[\"10.0.0.254\", \"fd00::ff\"]",
            "Default gateways: one address for each family at most, in a network of this \
             port.",
        ),
        field(
            "mtu",
            ValueForm::Integer { min: 1280, max: 9600 },
            Value("1500"),
            "9000",
            "The largest IP packet that the port takes and sends, in bytes.",
        ),
        field(
            "queues",
            ValueForm::IntegerOrAuto { min: 1, max: 64 },
            Value("auto"),
            "2",
            "Pairs of queues, each served by one worker. `\"auto\"`: one for each worker, as far as the device has them. \
             Fewer than workers: those without a queue get their packets from those with one.",
        ),
        field(
            "rx_descriptors",
            ValueForm::Integer { min: 64, max: 32_768 },
            Value("1024"),
            "2048",
            "Packets that may wait in a receive queue.",
        ),
        field(
            "tx_descriptors",
            ValueForm::Integer { min: 64, max: 32_768 },
            Value("1024"),
            "2048",
            "Packets that may wait in a transmit queue.",
        ),
        field(
            "promiscuous",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether the port takes packets for all Ethernet addresses; what is not for its own is dropped and counted. \
             Some virtual devices need it.",
        ),
    ],
};
