//! Every script, put together from its file and what it shares with others.

use crate::store::redis::connection::Script;
use std::sync::LazyLock;

const LIB: &str = include_str!("lua/lib.lua");
const GROUPS: &str = include_str!("lua/groups.lua");
const APPLY_TEXT: &str = include_str!("lua/apply.lua");
const LEASE: &str = include_str!("lua/lease.lua");

pub(super) static READ: LazyLock<Script> = LazyLock::new(|| Script::reading(&[include_str!("lua/read.lua")]));
pub(super) static APPLY: LazyLock<Script> = LazyLock::new(|| Script::new(&[LIB, APPLY_TEXT]));
pub(super) static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(&[LIB, include_str!("lua/take.lua"), LEASE]));
/// The same where groups or limits are in play: each call makes every function of its script, so others do without these.
pub(super) static APPLY_GROUPS: LazyLock<Script> = LazyLock::new(|| Script::new(&[LIB, GROUPS, APPLY_TEXT]));
pub(super) static TAKE_GROUPS: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[LIB, GROUPS, include_str!("lua/take_groups.lua"), LEASE]));
pub(super) static CATALOGUE: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("lua/catalogue.lua")]));
pub(super) static LOOK: LazyLock<Script> = LazyLock::new(|| Script::reading(&[include_str!("lua/catalogue.lua")]));
pub(super) static QUEUE: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("lua/queue.lua")]));
