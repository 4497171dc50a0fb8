//! What the checker asks of the outside.
//!
//! For:     types that only the traced file knows: `args`, `retval`, structs of its debug information.
//! State:   the implementor's.
//! Context: control.
//! Keeps:   1. The checker never opens a traced file itself.
//! Checked: tests/language.rs.

use crate::ast::AttachPoint;
use crate::site::{Located, Site, Symbol};
use crate::types::{CTypes, StructId, Type};

/// Facts about traced files, system and files to import. Each has an answer that means "not known".
pub trait World {
    /// The places in traced code that an attach point means. `None`: places are not looked for, as where a script is checked only.
    ///
    /// # Errors
    /// Why there are none, as the message says it.
    fn expand(&mut self, point: &AttachPoint) -> Result<Option<Vec<Site>>, Missing> {
        let _ = point;
        Ok(None)
    }

    /// The arguments of the function as a struct whose fields are named and typed, for `args`.
    ///
    /// # Errors
    /// Why there are none, as the message says it.
    fn args(&mut self, point: &AttachPoint, types: &mut CTypes) -> Result<Located<StructId>, String> {
        let _ = types;
        Err(format!("no debug information with the arguments of {}", point.text))
    }

    /// The function's value; `None`: not known, `retval` is then an integer of 64 bits.
    fn retval(&mut self, point: &AttachPoint, types: &mut CTypes) -> Option<Located<Type>> {
        let _ = (point, types);
        None
    }

    /// A type of the traced files' debug information by its written name: `struct Foo`, `enum E`, `my_typedef`.
    fn named(&mut self, points: &[AttachPoint], name: &str, types: &mut CTypes) -> Option<Type> {
        let _ = (points, name, types);
        None
    }

    /// A variable of the traced file, for `uaddr`; `None`: not known.
    fn symbol(&mut self, point: &AttachPoint, name: &str) -> Option<Symbol> {
        let _ = (point, name);
        None
    }

    /// The text of a file to import, or a directory's `.bt` and `.h` files.
    ///
    /// # Errors
    /// Why it can't be read.
    fn import(&mut self, path: &std::path::Path) -> Result<Vec<(std::path::PathBuf, String)>, String> {
        Err(format!("{} can't be imported here", path.display()))
    }

    /// The text of a header by the name in `#include <...>`; its constants are taken from it.
    fn header(&mut self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// The id of a cgroup by its path, for `cgroupid`.
    fn cgroup_id(&mut self, path: &str) -> Option<u64> {
        let _ = path;
        None
    }
}

/// Why an attach point leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing has the name: what is done then is a setting.
    NoMatch {
        /// What has no match.
        message: String,
        /// What could be meant, a line each.
        near: Vec<String>,
    },
    /// It can't be asked: no such file, no such address.
    Broken(String),
}

/// Knows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl World for Nowhere {}
