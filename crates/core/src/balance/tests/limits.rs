//! Backends that have as many connections as they may.

use super::{ALL, Checks, NUMBER_FIRST, balancer, flow, service};
use crate::balance::{Demand, bytes_hash};
use crate::config::Algorithm;
use crate::time::Time;

#[test]
fn full_backends_get_nothing_until_they_have_room() {
    for algorithm in ALL {
        let mut service = service(algorithm, &[1; 3]);
        service.backends.iter_mut().zip([2, 3, 0]).for_each(|(backend, most)| backend.connections_max = most);
        service.backends[2].weight = 0;
        let (mut balancer, loads) = balancer(&service);
        let mut counts = [0; 3];
        for i in 0..5 {
            assert!(!balancer.is_full(), "{algorithm:?}");
            let chosen = balancer.choose(&flow(100 * i)).unwrap();
            counts[usize::from(chosen)] += 1;
            loads.add(u32::from(NUMBER_FIRST + chosen));
        }
        assert_eq!((counts, balancer.is_full()), ([2, 3, 0], true), "{algorithm:?}");
        assert_eq!(balancer.choose(&flow(0)), None, "{algorithm:?}");
        loads.take(NUMBER_FIRST.into());
        assert_eq!((balancer.choose(&flow(0)), balancer.is_full()), (Some(0), false), "{algorithm:?}");
        let checks = Checks::new();
        (0..2).for_each(|index| checks.set_available(&mut balancer, index, false));
        assert_eq!((balancer.choose(&flow(0)), balancer.is_full()), (None, false), "none is there, which is not full");
    }
}

#[test]
fn without_a_limit_none_is_full() {
    let (mut balancer, loads) = balancer(&service(Algorithm::RoundRobin, &[1]));
    (0..1000).for_each(|_| loads.add(NUMBER_FIRST.into()));
    assert!(!balancer.is_full() && balancer.has_room(0));
    assert_eq!(balancer.choose(&flow(0)), Some(0));
}

#[test]
fn values_of_a_full_backend_go_elsewhere_and_come_back() {
    let mut service = service(Algorithm::PathHash, &[1; 4]);
    service.backends.iter_mut().for_each(|backend| backend.connections_max = 1);
    let (mut balancer, loads) = balancer(&service);
    let demand = Demand { flow: &flow(0), hash: Some(bytes_hash(b"/a")), now: Time::ZERO };
    let own = balancer.choose_for(&demand).unwrap();
    let number = u32::from(NUMBER_FIRST + own);
    loads.add(number);
    let other = balancer.choose_for(&demand).unwrap();
    assert_ne!(other, own);
    assert_eq!(balancer.choose_for(&demand), Some(other));
    loads.take(number);
    assert_eq!(balancer.choose_for(&demand), Some(own));
}
