#![doc = include_str!("../README.md")]
// Models leave the tables out: they have no domain under loom.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[doc(hidden)]
pub mod chain;
mod list;
mod order;
mod prim;
mod tree;

#[cfg(not(loom))]
mod fold;
#[cfg(not(loom))]
mod rhltable;

#[cfg(not(loom))]
pub use fold::{Fold, FoldHasher};
pub use list::{List, ListNode, Walk};
#[cfg(all(not(loom), feature = "broken"))]
pub use rhltable::Broken;
#[cfg(not(loom))]
pub use rhltable::{BuildError, Duplicates, Handle, InsertError, Options, Reader, Resized, RhlTable};
pub use tree::{Key, Lookup, Tree, TreeNode};
