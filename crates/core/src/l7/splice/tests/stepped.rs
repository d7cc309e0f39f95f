//! A process that is killed after any store of any step of a conversation, and the next one, which takes over what it
//! leaves: each connection is as it was before the step, or as it is behind it, or both its ends are reset.

use super::crashes::{STEPS, check, goes_on, two};
use super::one_worker::SMALL;
use super::stamped;
use crate::l7::splice::SplicedMemory;
use crate::table::stepped::step_through;
use crate::time::Duration;
use alloc::vec::Vec;

/// Entries of client connections and backend connections, as the next process takes them over.
type Entries = [Vec<Vec<u8>>; 2];

fn taken_over(step: usize, image: &[u8]) -> Entries {
    let (mut fixture, _, _) = two(step);
    fixture.restart_from(Some(image));
    fixture.worker.spliced_entries()
}

/// The process is killed in the course of a step, and leaves this memory. Says whether an operation was interrupted.
fn killed(step: usize, image: &[u8], whole: &[Entries; 2]) -> bool {
    let (mut fixture, mut other, mut talk) = two(step);
    let adopted = fixture.restart_from(Some(image));
    assert_eq!((adopted.forgotten(), adopted.without_service, adopted.misplaced), (0, 0, 0), "{adopted:?}");
    if adopted.interrupted == 0 {
        assert!(whole.contains(&fixture.worker.spliced_entries()), "neither as before step {step} nor as behind it");
        return false;
    }
    // A client's connection and its backend's, and one that it has left or taken.
    assert!(adopted.interrupted <= 3, "{adopted:?}");
    check(&[&talk, &other], &fixture.wait(Duration::from_millis(50)));
    goes_on(&mut fixture, &mut other);
    // The client whose connection begins with this step sends its request again, if it has none yet.
    let is_reset = talk.client.is_reset(&mut fixture);
    assert!(is_reset || step == 0, "step {step}: {adopted:?}");
    if let Some(backend) = &mut talk.backend {
        let is_kept = adopted.backend_conns == 2;
        assert_eq!(backend.is_reset(&mut fixture), !is_kept, "step {step}: {adopted:?}");
    }
    check(&[&talk, &other], &fixture.wait(Duration::from_secs(20)));
    fixture.over();
    true
}

#[test]
fn killed_after_every_store_of_a_conversation() {
    stamped::without();
    let (mut images, mut interrupted, mut instructions) = (0, 0, 0);
    for step in 0..STEPS {
        let (mut fixture, _other, mut talk) = two(step);
        let image = fixture.worker.spliced_image();
        let before = image.copy();
        let behind = {
            let (mut fixture, _other, mut talk) = two(step);
            talk.step(&mut fixture, step);
            fixture.worker.spliced_image().copy()
        };
        let whole = [taken_over(step, &before), taken_over(step, &behind)];
        let mut last = before;
        let stepped = step_through(
            &image,
            SplicedMemory::bytes_before_buffers(SMALL),
            || drop(talk.step(&mut fixture, step)),
            |now| {
                images += 1;
                interrupted += u32::from(killed(step, now, &whole));
                last.copy_from_slice(now);
            },
        );
        let Some(stepped) = stepped else {
            std::eprintln!("skipped: this machine does not allow ptrace");
            return;
        };
        instructions += stepped;
        assert!(last == behind, "the child did what its parent does");
    }
    std::println!("{images} images in {instructions} instructions, {interrupted} with an interrupted operation");
    assert!(images > 300 && interrupted > 250, "{images} images, {interrupted} interrupted");
}
