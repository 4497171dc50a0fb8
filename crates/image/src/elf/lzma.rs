//! LZMA2: chunks of range-coded matches in what has been written so far.
//!
//! For:     `xz.rs`.
//! State:   the coder's probabilities; the bytes written are the dictionary.
//! Context: control. Cost: some 15 ns a plain byte.
//! Keeps:   L1 each byte is counted against the limit before it is written.
//!          L2 no input makes it read outside the input or behind the first byte of its own dictionary.
//! Checked: tests of xz.rs.
//! Source:  LZMA specification (2015), LZMA2 as the .xz file format has it.

/// What ends decoding early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// It is not LZMA2.
    Data,
    /// More plain bytes than allowed.
    Limit,
}

type Prob = u16;
const HALF: Prob = 1 << 10;
const MATCH_MIN: usize = 2;
/// An encoder begins anew where a stretch without matches has ended, once in 64 KB.
const BYTES_PER_RESET: usize = 4096;
const RESETS_MIN: usize = 1024;
/// States below this follow a literal.
const LITERAL_STATES: usize = 7;

/// A decoder of one block.
pub(super) struct Lzma2<'d> {
    input: &'d [u8],
    at: usize,
    /// Where the dictionary begins in the plain bytes.
    start: usize,
    limit: usize,
    model: Model,
    /// How often the model may still begin anew, which costs 24 KB of writes.
    resets: usize,
    may_keep_model: bool,
    may_keep_dictionary: bool,
}

impl<'d> Lzma2<'d> {
    /// Of `input`, whose plain bytes begin at `start` of what is written to, which may grow to `limit` bytes.
    pub(super) fn new(input: &'d [u8], start: usize, limit: usize) -> Lzma2<'d> {
        let model = Model::new(0, 0, 0);
        let resets = RESETS_MIN + input.len() / BYTES_PER_RESET;
        Lzma2 { input, at: 0, start, limit, model, resets, may_keep_model: false, may_keep_dictionary: false }
    }

    /// Decodes to the end mark; how many bytes of input there were.
    pub(super) fn run(&mut self, plain: &mut Vec<u8>) -> Result<usize, Wrong> {
        loop {
            match self.byte()? {
                0 => return Ok(self.at),
                kind @ (1 | 2) => self.stored(kind == 1, plain)?,
                kind @ 0x80.. => self.coded(kind, plain)?,
                _ => return Err(Wrong::Data),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        let byte = *self.input.get(self.at).ok_or(Wrong::Data)?;
        self.at += 1;
        Ok(byte)
    }

    fn size(&mut self) -> Result<usize, Wrong> {
        Ok(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }

    fn take(&mut self, len: usize) -> Result<&'d [u8], Wrong> {
        let bytes = self.input.get(self.at..self.at + len).ok_or(Wrong::Data)?;
        self.at += len;
        Ok(bytes)
    }

    /// Begins a dictionary, or goes on with the one that is there.
    fn dictionary(&mut self, is_new: bool, plain: &[u8], grows_by: usize) -> Result<(), Wrong> {
        if is_new {
            (self.start, self.may_keep_dictionary) = (plain.len(), true);
        }
        if !self.may_keep_dictionary {
            return Err(Wrong::Data);
        }
        if plain.len() + grows_by > self.limit { Err(Wrong::Limit) } else { Ok(()) }
    }

    fn stored(&mut self, is_new: bool, plain: &mut Vec<u8>) -> Result<(), Wrong> {
        let len = self.size()? + 1;
        self.dictionary(is_new, plain, len)?;
        plain.extend_from_slice(self.take(len)?);
        Ok(())
    }

    fn coded(&mut self, kind: u8, plain: &mut Vec<u8>) -> Result<(), Wrong> {
        let plain_len = (usize::from(kind & 0x1f) << 16 | self.size()?) + 1;
        let packed_len = self.size()? + 1;
        self.dictionary(kind >= 0xe0, plain, plain_len)?;
        if kind >> 5 & 3 != 0 {
            self.resets = self.resets.checked_sub(1).ok_or(Wrong::Data)?;
        }
        match kind >> 5 & 3 {
            0 if !self.may_keep_model => return Err(Wrong::Data),
            0 => {}
            1 if !self.may_keep_model => return Err(Wrong::Data),
            1 => self.model = Model::new(self.model.lc, self.model.lp, self.model.pb),
            _ => {
                let properties = self.byte()?;
                let (lc, lp, pb) = (properties % 9, properties / 9 % 5, properties / 45);
                if lc + lp > 4 || pb > 4 {
                    return Err(Wrong::Data);
                }
                self.model = Model::new(lc.into(), lp.into(), pb.into());
                self.may_keep_model = true;
            }
        }
        let mut range = Range::new(self.take(packed_len)?)?;
        let end = plain.len() + plain_len;
        while plain.len() < end {
            self.model.step(&mut range, plain, self.start, end)?;
        }
        // Nothing may hide behind what was asked for.
        if range.is_over() { Ok(()) } else { Err(Wrong::Data) }
    }
}

/// The range decoder of one chunk.
struct Range<'d> {
    input: std::slice::Iter<'d, u8>,
    range: u32,
    code: u32,
    is_short: bool,
}

impl<'d> Range<'d> {
    fn new(bytes: &'d [u8]) -> Result<Range<'d>, Wrong> {
        let (head, rest) = bytes.split_at_checked(5).ok_or(Wrong::Data)?;
        let code = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let range = Range { input: rest.iter(), range: u32::MAX, code, is_short: false };
        if head[0] == 0 { Ok(range) } else { Err(Wrong::Data) }
    }

    fn is_over(&mut self) -> bool {
        self.normalise();
        !self.is_short && self.code == 0 && self.input.len() == 0
    }

    #[inline]
    fn normalise(&mut self) {
        if self.range < 1 << 24 {
            self.range <<= 8;
            let next = self.input.next();
            self.is_short |= next.is_none();
            self.code = self.code << 8 | u32::from(*next.unwrap_or(&0));
        }
    }

    #[inline]
    fn bit(&mut self, prob: &mut Prob) -> usize {
        self.normalise();
        let bound = (self.range >> 11) * u32::from(*prob);
        if self.code < bound {
            self.range = bound;
            *prob += (2048 - *prob) >> 5;
            0
        } else {
            self.range -= bound;
            self.code -= bound;
            *prob -= *prob >> 5;
            1
        }
    }

    fn direct(&mut self, bits: u32) -> u32 {
        let mut value = 0;
        for _ in 0..bits {
            self.normalise();
            self.range >>= 1;
            let is_one = self.code >= self.range;
            if is_one {
                self.code -= self.range;
            }
            value = value << 1 | u32::from(is_one);
        }
        value
    }

    fn tree(&mut self, probs: &mut [Prob]) -> usize {
        let mut node = 1;
        while node < probs.len() {
            node = node << 1 | self.bit(&mut probs[node]);
        }
        node - probs.len()
    }

    fn reverse_tree(&mut self, probs: &mut [Prob], bits: u32) -> u32 {
        let (mut node, mut value) = (1, 0);
        for shift in 0..bits {
            let bit = self.bit(&mut probs[node]);
            node = node << 1 | bit;
            value |= (bit as u32) << shift;
        }
        value
    }
}

/// The coder of lengths.
struct Lengths {
    is_long: Prob,
    is_longest: Prob,
    low: [[Prob; 8]; 16],
    mid: [[Prob; 8]; 16],
    high: [Prob; 256],
}

impl Lengths {
    const NEW: Lengths = Lengths {
        is_long: HALF,
        is_longest: HALF,
        low: [[HALF; 8]; 16],
        mid: [[HALF; 8]; 16],
        high: [HALF; 256],
    };

    fn decode(&mut self, range: &mut Range<'_>, place: usize) -> usize {
        if range.bit(&mut self.is_long) == 0 {
            return range.tree(&mut self.low[place]);
        }
        if range.bit(&mut self.is_longest) == 0 {
            return 8 + range.tree(&mut self.mid[place]);
        }
        16 + range.tree(&mut self.high)
    }
}

/// All that the coder has learnt.
struct Model {
    lc: u32,
    lp: u32,
    pb: u32,
    state: usize,
    /// The four last distances, less one.
    reps: [u32; 4],
    literals: Vec<[Prob; 0x300]>,
    is_match: [[Prob; 16]; 12],
    is_rep: [Prob; 12],
    is_rep_old: [Prob; 12],
    is_rep_older: [Prob; 12],
    is_rep_oldest: [Prob; 12],
    is_rep_long: [[Prob; 16]; 12],
    slots: [[Prob; 64]; 4],
    special: [Prob; 115],
    align: [Prob; 16],
    lengths: Lengths,
    rep_lengths: Lengths,
}

impl Model {
    fn new(lc: u32, lp: u32, pb: u32) -> Model {
        Model {
            lc,
            lp,
            pb,
            state: 0,
            reps: [0; 4],
            literals: vec![[HALF; 0x300]; 1 << (lc + lp)],
            is_match: [[HALF; 16]; 12],
            is_rep: [HALF; 12],
            is_rep_old: [HALF; 12],
            is_rep_older: [HALF; 12],
            is_rep_oldest: [HALF; 12],
            is_rep_long: [[HALF; 16]; 12],
            slots: [[HALF; 64]; 4],
            special: [HALF; 115],
            align: [HALF; 16],
            lengths: Lengths::NEW,
            rep_lengths: Lengths::NEW,
        }
    }

    /// Decodes a literal or a match, up to `end`.
    fn step(
        &mut self,
        range: &mut Range<'_>,
        plain: &mut Vec<u8>,
        start: usize,
        end: usize,
    ) -> Result<(), Wrong> {
        let position = plain.len() - start;
        let place = position & ((1 << self.pb) - 1);
        let state = self.state;
        if range.is_short {
            return Err(Wrong::Data);
        }
        if range.bit(&mut self.is_match[state][place]) == 0 {
            plain.push(self.literal(range, &plain[start..])?);
            return Ok(());
        }
        let len = if range.bit(&mut self.is_rep[state]) == 0 {
            self.matched(range, place)
        } else {
            match self.repeated(range, place) {
                Some(len) => len,
                None => {
                    self.state = if state < LITERAL_STATES { 9 } else { 11 };
                    1
                }
            }
        };
        let distance = self.reps[0] as usize + 1;
        if distance > position || len > end - plain.len() {
            return Err(Wrong::Data);
        }
        for _ in 0..len {
            plain.push(plain[plain.len() - distance]);
        }
        Ok(())
    }

    fn literal(&mut self, range: &mut Range<'_>, written: &[u8]) -> Result<u8, Wrong> {
        let position = written.len();
        let before = written.last().copied().unwrap_or(0);
        let low = (position & ((1 << self.lp) - 1)) << self.lc;
        let probs = &mut self.literals[low + (usize::from(before) >> (8 - self.lc))];
        let mut symbol = 1;
        if self.state >= LITERAL_STATES {
            let distance = self.reps[0] as usize + 1;
            let at = position.checked_sub(distance).ok_or(Wrong::Data)?;
            let mut matched = usize::from(written[at]);
            while symbol < 0x100 {
                let expected = matched >> 7 & 1;
                matched <<= 1;
                let bit = range.bit(&mut probs[(1 + expected) << 8 | symbol]);
                symbol = symbol << 1 | bit;
                if bit != expected {
                    break;
                }
            }
        }
        while symbol < 0x100 {
            symbol = symbol << 1 | range.bit(&mut probs[symbol]);
        }
        self.state = match self.state {
            0..4 => 0,
            state @ 4..10 => state - 3,
            state => state - 6,
        };
        Ok(symbol as u8)
    }

    /// A match at a new distance; its length.
    fn matched(&mut self, range: &mut Range<'_>, place: usize) -> usize {
        self.reps.rotate_right(1);
        let len = self.lengths.decode(range, place);
        self.state = if self.state < LITERAL_STATES { 7 } else { 10 };
        let slot = range.tree(&mut self.slots[len.min(3)]) as u32;
        self.reps[0] = match slot {
            0..4 => slot,
            4..14 => {
                let bits = (slot >> 1) - 1;
                let base = (2 | slot & 1) << bits;
                base + range.reverse_tree(&mut self.special[(base - slot) as usize..], bits)
            }
            _ => {
                let bits = (slot >> 1) - 1;
                let high = range.direct(bits - 4) << 4;
                ((2 | slot & 1) << bits) + high + range.reverse_tree(&mut self.align, 4)
            }
        };
        len + MATCH_MIN
    }

    /// A match at one of the last distances; its length, `None` for a single byte.
    fn repeated(&mut self, range: &mut Range<'_>, place: usize) -> Option<usize> {
        let state = self.state;
        if range.bit(&mut self.is_rep_old[state]) == 0 {
            if range.bit(&mut self.is_rep_long[state][place]) == 0 {
                return None;
            }
        } else {
            let which = match range.bit(&mut self.is_rep_older[state]) {
                0 => 1,
                _ => 2 + range.bit(&mut self.is_rep_oldest[state]),
            };
            self.reps[..=which].rotate_right(1);
        }
        self.state = if state < LITERAL_STATES { 8 } else { 11 };
        Some(self.rep_lengths.decode(range, place) + MATCH_MIN)
    }
}
