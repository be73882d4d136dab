//! Every script, put together from its file and what it shares with others.

use crate::store::redis::connection::Script;
use std::sync::LazyLock;

const LIB: &str = include_str!("lua/lib.lua");

pub(super) static READ: LazyLock<Script> = LazyLock::new(|| Script::reading(&[include_str!("lua/read.lua")]));
pub(super) static APPLY: LazyLock<Script> = LazyLock::new(|| Script::new(&[LIB, include_str!("lua/apply.lua")]));
pub(super) static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(&[LIB, include_str!("lua/take.lua")]));
pub(super) static CATALOGUE: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("lua/catalogue.lua")]));
pub(super) static LOOK: LazyLock<Script> = LazyLock::new(|| Script::reading(&[include_str!("lua/catalogue.lua")]));
pub(super) static QUEUE: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("lua/queue.lua")]));
