//! Cells to bytes, bytes to the terminal, as fast as that takes them.
//!
//! For:     the live view.
//! State:   what is on the screen; bytes that the terminal has not taken yet.
//! Context: control.
//! Keeps:   C1 a terminal that takes nothing gets no new picture, and keeps nobody.
//!          C2 dropped, the terminal is given back.
//! Checked: testkit `view`.

use super::draw;
use super::keys::Key;
use super::shot::Shot;
use super::tty::Tty;
use super::view::View;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::rc::Rc;

/// Bytes on their way.
#[derive(Clone, Default)]
struct Pending(Rc<RefCell<Vec<u8>>>);

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub struct Screen {
    tty: Tty,
    pending: Pending,
    terminal: Terminal<CrosstermBackend<Pending>>,
    size: (u16, u16),
}

impl Screen {
    pub fn open(tty: Tty) -> Option<Screen> {
        let pending = Pending::default();
        let (width, height) = tty.size();
        let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
        let backend = CrosstermBackend::new(pending.clone());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport }).ok()?;
        tty.take();
        Some(Screen { tty, pending, terminal, size: (width, height) })
    }

    /// Rows of the terminal as it is now.
    pub fn height(&self) -> u16 {
        self.tty.size().1
    }

    /// Draws, if the last picture has left.
    pub fn show(&mut self, shot: &Shot, view: &View) {
        if !self.push() {
            return;
        }
        let (width, height) = self.tty.size();
        if self.size != (width, height) {
            self.size = (width, height);
            let _ = self.terminal.resize(Rect::new(0, 0, width, height));
        }
        let _ = self.terminal.draw(|frame| draw::draw(frame, shot, view));
        self.push();
    }

    /// The next picture is drawn whole.
    pub fn forget(&mut self) {
        // Not by `Terminal::clear`: it asks the terminal where the cursor is and reads the answer, and with it keys; of a terminal
        // that has gone it reads for ever.
        self.size = (0, 0);
    }

    /// Writes what the terminal takes; true if nothing is left.
    fn push(&mut self) -> bool {
        let mut pending = self.pending.0.borrow_mut();
        let mut done = 0;
        while done < pending.len() {
            match self.tty.write(&pending[done..]) {
                0 => break,
                n => done += n,
            }
        }
        pending.drain(..done);
        pending.is_empty()
    }

    /// Readable when a key was pressed.
    pub fn announces(&self) -> RawFd {
        self.tty.keys()
    }

    pub fn keys(&self) -> Vec<Key> {
        self.tty.take_keys().into_iter().filter_map(Key::of_word).collect()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.push();
        self.tty.give_back();
    }
}
