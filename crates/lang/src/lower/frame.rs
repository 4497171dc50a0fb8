//! Where the values of one program lie.
//!
//! For:     the lowering.
//! State:   how much of the stack and of scratch memory is in use.
//! Context: control.
//! Keeps:   1. Two places that are in use at one time do not overlap.
//!          2. The stack of a program is at most [`STACK_MAX`] bytes.
//! Checked: tests below.

/// What a program may have of BPF's 512 bytes.
const STACK_MAX: i32 = 256;
/// Larger values lie in scratch memory.
const SMALL: i32 = 64;

/// What a place is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// r10, downwards.
    Stack,
    /// r9: the value of the scratch map.
    Scratch,
    /// The constants.
    Constants,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is counted from.
    pub base: Base,
    /// Bytes.
    pub at: i32,
}

impl Place {
    /// So many bytes further.
    pub fn plus(self, bytes: usize) -> Place {
        Place { at: self.at.saturating_add(bytes as i32), ..self }
    }
}

/// Memory in use.
#[derive(Debug, Default)]
pub struct Frame {
    stack: i32,
    scratch: i32,
    /// The most that scratch memory ever was.
    pub peak: i32,
}

/// What was in use at one time.
#[derive(Clone, Copy, Debug)]
pub struct Mark(i32, i32);

impl Frame {
    /// Memory for a value, aligned to eight bytes.
    pub fn take(&mut self, size: usize) -> Place {
        let size = i32::try_from(size.next_multiple_of(8)).unwrap_or(1 << 30).max(8);
        if size <= SMALL && self.stack + size <= STACK_MAX {
            self.stack += size;
            return Place { base: Base::Stack, at: -self.stack };
        }
        let at = self.scratch;
        self.scratch = self.scratch.saturating_add(size);
        self.peak = self.peak.max(self.scratch);
        Place { base: Base::Scratch, at }
    }

    /// What is in use now.
    pub fn mark(&self) -> Mark {
        Mark(self.stack, self.scratch)
    }

    /// Gives back what was taken since.
    pub fn release(&mut self, mark: Mark) {
        (self.stack, self.scratch) = (mark.0, mark.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_fill_the_stack_and_others_go_to_scratch() {
        let mut frame = Frame::default();
        assert_eq!(frame.take(1), Place { base: Base::Stack, at: -8 });
        assert_eq!(frame.take(1024), Place { base: Base::Scratch, at: 0 });
        let mark = frame.mark();
        let places: Vec<_> = (0..40).map(|_| frame.take(16)).collect();
        assert!(places.iter().all(|p| p.base != Base::Stack || p.at >= -STACK_MAX));
        assert!(places.iter().any(|p| p.base == Base::Scratch && p.at >= 1024));
        frame.release(mark);
        assert_eq!(frame.take(8), Place { base: Base::Stack, at: -16 });
        assert!(frame.peak >= 1040);
    }
}
