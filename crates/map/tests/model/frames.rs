//! Two calls that want one frame: F1; mutant no-claim.
//!
//! Not here: that a stamp is read before the frame is another's (MAP-16, MAP-17). A load that takes place after a later store
//! of its own thread is nothing that loom tries; the threads of `tests/frames.rs` run it.

use crate::{base, model};
use loom::thread;
use map::{Call, Frames, Memory, Opened};

#[test]
fn whoever_opens_a_frame_closes_it_with_its_own_stamp() {
    model(3, || {
        Memory::begin(256);
        let threads = [1u64, 2].map(|n| {
            thread::spawn(move || {
                // SAFETY: the model's memory, zeros at first.
                let frames = unsafe { Frames::at(base()) };
                // As far apart as the table is long: the same frame.
                let call = Call::in_goroutine(n, 0, 0);
                match frames.open(call, n) {
                    Opened::New => assert_eq!(frames.close(call), Some(n), "another's stamp, or none"),
                    Opened::NoRoom => assert_eq!(frames.close(call), None),
                    Opened::InsteadOfOther => panic!("no two calls have one place"),
                }
            })
        });
        threads.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: as above.
        assert_eq!(unsafe { Frames::at(base()) }.in_use(), 0);
    });
}
