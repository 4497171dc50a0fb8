//! What a call costs with probes in it, as a figure.
//!
//! For:     `record`, `top` and budgets.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests below.

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Nanoseconds that a call takes longer.
    pub ns: f64,
    /// Nanoseconds of a call without probes.
    pub bare_ns: f64,
    /// Frames of the stacks that were counted meanwhile, if any were: how deep a walk the price has.
    pub frames: Option<usize>,
    /// Nanoseconds that each frame more adds to such a walk.
    pub per_frame_ns: Option<f64>,
}

impl Price {
    /// Of a call whose walk has so many frames as a rule.
    pub fn with_frames(&self, frames: f64) -> f64 {
        let more = self.frames.zip(self.per_frame_ns).map(|(known, ns)| (frames - known as f64) * ns);
        (self.ns + more.unwrap_or(0.0)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deeper_walk_costs_so_much_more_a_frame() {
        let price = Price { ns: 100.0, bare_ns: 1.0, frames: Some(10), per_frame_ns: Some(5.0) };
        assert_eq!([10.0, 30.0, 2.0].map(|frames| price.with_frames(frames)), [100.0, 200.0, 60.0]);
        assert_eq!(Price { frames: None, per_frame_ns: None, ..price }.with_frames(30.0), 100.0);
    }
}
