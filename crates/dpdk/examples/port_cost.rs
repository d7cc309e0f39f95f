//! The cost of a frame through the ports of this crate: `port_cost` forwards from one null device to another as fast as it
//! can, on one core, as `dpdk-testpmd --vdev=net_null0 --vdev=net_null1 -- --forward-mode=io` does, and sends bursts
//! through a wire of rings and back. Prints nanoseconds of processor time a frame, the median of five runs.

#[cfg(not(feature = "dpdk"))]
fn main() {
    eprintln!("needs the feature dpdk");
}

#[cfg(feature = "dpdk")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    with_dpdk::main()
}

#[cfg(feature = "dpdk")]
mod with_dpdk {
    use hairpin_core::frame::{Batch, Frame, FrameIo};
    use hairpin_dpdk::{Eal, EalOptions, EalPages, Mbuf, MbufPool, PoolOptions, Port, PortIo, PortOptions, PortQueue};
    use std::error::Error;

    const FRAMES: usize = 20_000_000;

    pub(crate) fn main() -> Result<(), Box<dyn Error>> {
        let eal = Eal::start(EalOptions { pages: EalPages::Auto, ..EalOptions::default() })?;
        let _registration = eal.register_thread()?;
        let pool = MbufPool::create(&eal, PoolOptions::default())?;
        let open =
            |device: &str| Port::open(&eal, &PortOptions { device: device.into(), ..PortOptions::default() }, &pool);
        let queue = |port: &Port| port.queue(0).ok_or("no queue");

        let ports = [open("net_null0")?, open("net_null1")?];
        let mut io = PortIo::new(vec![queue(&ports[0])?, queue(&ports[1])?], pool.clone());
        measure("null to null, as a plane does", || forward(&mut io));
        drop(io);
        let mut queues = [queue(&ports[0])?, queue(&ports[1])?];
        measure("null to null, queue by queue", || between(&mut queues));

        let (first, second) = Port::pair(&eal, &PortOptions::default(), &pool)?;
        let mut ends = [queue(&first)?, queue(&second)?];
        measure("over a wire of rings and back", || wire(&mut ends, &pool));
        Ok(())
    }

    /// The processor time of this thread, in nanoseconds: others may want it too.
    fn processor_time() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default()
    }

    fn measure(what: &str, mut run: impl FnMut()) {
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let start = processor_time();
                run();
                (processor_time() - start) as f64 / FRAMES as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{what}: {:.2} ns a frame ({:.2} to {:.2})", times[2], times[0], times[4]);
    }

    fn forward(io: &mut PortIo) {
        let mut batch = Batch::new();
        let mut done = 0;
        while done < FRAMES {
            io.receive(&mut batch);
            done += batch.len();
            for frame in &mut batch {
                frame.meta_mut().port ^= 1;
            }
            io.transmit(&mut batch);
        }
    }

    fn between(queues: &mut [PortQueue; 2]) {
        let mut batch = Batch::new();
        let mut done = 0;
        while done < FRAMES {
            let [first, second] = queues;
            done += first.receive(&mut batch);
            second.transmit(&mut batch);
            done += second.receive(&mut batch);
            first.transmit(&mut batch);
        }
    }

    fn wire(ends: &mut [PortQueue; 2], pool: &MbufPool) {
        let mut batch: Batch<Mbuf> = Batch::new();
        pool.allocate_burst(&mut batch, 32);
        for frame in &mut batch {
            frame.resize(60);
        }
        let [near, far] = ends;
        let mut done = 0;
        while done < FRAMES {
            near.transmit(&mut batch);
            far.receive(&mut batch);
            far.transmit(&mut batch);
            near.receive(&mut batch);
            done += 2 * batch.len();
        }
    }
}
