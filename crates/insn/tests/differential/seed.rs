//! Random numbers from a printed seed.
//!
//! For:     random.rs, and the tests of aarch64.
//! State:   one 64-bit word.
//! Context: test only.
//! Keeps:   G1 the same seed gives the same numbers.
//! Checked: by rerunning a printed seed.

/// A generator of random numbers (splitmix64).
pub struct Seed(u64);

impl Seed {
    /// From `NANOPROBE_SEED`, or the clock; the seed is printed.
    pub fn from_env(what: &str) -> Seed {
        let clock =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("NANOPROBE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(clock);
        println!("{what}: NANOPROBE_SEED={seed}");
        Seed(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
