//! Protocol buffers, as far as two formats need them.
//!
//! For:     `pprof`, `perfetto`.
//! State:   the bytes so far.
//! Context: control.
//! Keeps:   P1 each field has its number, its kind, and for bytes their length.
//! Checked: tests below; tests/formats.rs by other readers.
//! Source:  protobuf.dev, encoding.

/// One message.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number; also one that is 0.
    pub fn number(&mut self, field: u32, value: u64) -> &mut Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// Bytes or text.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// A message inside.
    pub fn message(&mut self, field: u32, value: &Message) -> &mut Message {
        self.bytes(field, &value.0)
    }

    /// Several numbers of one field.
    pub fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Message {
        let mut inside = Message::default();
        values.into_iter().for_each(|value| inside.varint(value));
        self.message(field, &inside)
    }

    /// What was put in.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_as_the_encoding_has_them() {
        let mut message = Message::default();
        message.number(1, 150).bytes(2, b"testing").packed(4, [3, 270, 86942]);
        let wanted = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67],
            &[0x22, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05],
        ];
        assert_eq!(message.into_bytes(), wanted.concat());
    }
}
