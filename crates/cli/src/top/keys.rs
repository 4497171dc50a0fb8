//! Keys: read by the front, which stands in the terminal's foreground, and passed to the engine as words.
//!
//! For:     the live view.
//! State:   none.
//! Context: control; a thread of the front.
//! Keeps:   Q1 nothing is read from the terminal while the view is not on.
//! Checked: tests below; testkit `view`.

use super::tty::Tty;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// How often it is looked whether the view is still on.
const LOOK: Duration = Duration::from_millis(250);

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    /// Ctrl-C.
    Interrupt,
    /// The window has another size, or Ctrl-L.
    Redraw,
}

/// In the order of their words, behind the last character.
const NAMED: [Key; 15] = [
    Key::Enter,
    Key::Escape,
    Key::Backspace,
    Key::Up,
    Key::Down,
    Key::Left,
    Key::Right,
    Key::PageUp,
    Key::PageDown,
    Key::Home,
    Key::End,
    Key::Tab,
    Key::BackTab,
    Key::Interrupt,
    Key::Redraw,
];
const FIRST: u32 = char::MAX as u32 + 1;

impl Key {
    pub fn word(self) -> u32 {
        match self {
            Key::Char(c) => c.into(),
            named => FIRST + NAMED.iter().position(|k| *k == named).unwrap_or(0) as u32,
        }
    }

    pub fn of_word(word: u32) -> Option<Key> {
        match word.checked_sub(FIRST) {
            Some(number) => NAMED.get(number as usize).copied(),
            None => char::from_u32(word).map(Key::Char),
        }
    }

    fn of_event(event: &Event) -> Option<Key> {
        match event {
            Event::Resize(..) => Some(Key::Redraw),
            Event::Key(key) if key.kind != KeyEventKind::Release => Key::of_key(key),
            _ => None,
        }
    }

    fn of_key(key: &KeyEvent) -> Option<Key> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'C') => Some(Key::Interrupt),
                KeyCode::Char('l' | 'L') => Some(Key::Redraw),
                _ => None,
            };
        }
        Some(match key.code {
            KeyCode::Char(c) => Key::Char(c),
            KeyCode::Enter => Key::Enter,
            KeyCode::Esc => Key::Escape,
            KeyCode::Backspace => Key::Backspace,
            KeyCode::Up => Key::Up,
            KeyCode::Down => Key::Down,
            KeyCode::Left => Key::Left,
            KeyCode::Right => Key::Right,
            KeyCode::PageUp => Key::PageUp,
            KeyCode::PageDown => Key::PageDown,
            KeyCode::Home => Key::Home,
            KeyCode::End => Key::End,
            KeyCode::Tab => Key::Tab,
            KeyCode::BackTab => Key::BackTab,
            _ => return None,
        })
    }
}

/// Passes keys on as long as the view is on, and begins again when it comes back.
pub fn pass_on(tty: &Tty) {
    loop {
        tty.wait_until_on();
        while tty.is_on() {
            match event::poll(LOOK) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let Ok(event) = event::read() else { return };
            if Key::of_event(&event).is_some_and(|key| !tty.send(key.word())) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_out_as_it_went_in() {
        for key in NAMED.into_iter().chain(['a', '/', 'ß', char::MAX].map(Key::Char)) {
            assert_eq!(Key::of_word(key.word()), Some(key));
        }
        assert_eq!(Key::of_word(u32::MAX), None);
        assert_eq!(Key::of_word(0xd800), None, "no character");
    }

    #[test]
    fn control_c_is_no_letter() {
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(Key::of_key(&control('c')), Some(Key::Interrupt));
        assert_eq!(Key::of_key(&control('q')), None);
        assert_eq!(Key::of_event(&Event::Resize(1, 1)), Some(Key::Redraw));
    }
}
