//! Every script, put together from its file and what it shares with others.

use super::connection::Script;
use std::sync::LazyLock;

macro_rules! scripts {
    ($($kind:ident $name:ident: [$($part:literal),*];)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::$kind(&[$(include_str!(concat!("lua/", $part, ".lua"))),*]));)*
    };
}

scripts! {
    new ENQUEUE: ["lib/queue", "lib/place", "enqueue"];
    new CLAIM: ["lib/queue", "lib/place", "lib/lease", "claim"];
    new AGAIN: ["lib/queue", "lib/lease", "again"];
    new ACK: ["lib/queue", "lib/place", "lib/lease", "lib/success", "lib/remove", "ack"];
    new COMPLETE: ["lib/queue", "lib/place", "lib/lease", "lib/success", "lib/remove", "complete"];
    new REMOVE_COMPLETED: ["lib/queue", "lib/place", "lib/remove", "remove_completed"];
    new EXTEND: ["lib/queue", "lib/lease", "extend"];
    reading LEASES: ["lib/queue", "lib/tally", "leases"];
    new END: ["lib/queue", "lib/place", "lib/lease", "lib/remove", "lib/death", "lib/tally", "end"];
    new GIVE_BACK: ["lib/queue", "give_back"];
    new DUE: ["lib/queue", "lib/place", "due"];
    reading FIRST_DUE: ["lib/queue", "first_due"];
    new BURY: ["lib/queue", "lib/place", "lib/remove", "lib/death", "bury"];
    reading FIND: ["lib/queue", "lib/place", "find"];
    reading VIEWS: ["lib/queue", "lib/place", "lib/remove", "views"];
    reading PAGE: ["lib/queue", "page"];
    new CANCEL: ["lib/queue", "lib/place", "lib/lease", "lib/remove", "cancel"];
    new RUN_NOW: ["lib/queue", "lib/place", "run_now"];
    new REVIVE: ["lib/queue", "lib/place", "lib/remove", "lib/death", "revive"];
    new PURGE: ["lib/queue", "lib/place", "lib/remove", "lib/death", "purge"];
    reading GUARDS: ["lib/queue", "lib/tally", "guards"];
    new SET_GUARD: ["lib/queue", "lib/tally", "set_guard"];
    new PAUSE: ["lib/queue", "pause"];
    reading STATE: ["lib/queue", "lib/place", "state"];
    new ADOPT: ["lib/queue", "adopt"];
    new MAKE_QUEUE: ["make_queue"];
    new CLOSE_QUEUE: ["lib/queue", "close_queue"];
    new FORGET_QUEUE: ["forget_queue"];
    new END_QUEUE: ["lib/queue", "end_queue"];
    new FORGET_KEYS: ["lib/queue", "forget_keys"];
    new DEPART: ["lib/queue", "depart"];
    new ARRIVE: ["lib/queue", "lib/place", "arrive"];
    new LEAVE: ["lib/queue", "lib/place", "lib/remove", "lib/death", "leave"];
    new INTRODUCE: ["introduce"];
    reading AUDIT_COUNTS: ["lib/queue", "lib/tally", "audit_counts"];
    reading AUDIT_JOBS: ["lib/queue", "lib/place", "lib/remove", "audit_jobs"];
    reading AUDIT_ENTRIES: ["lib/queue", "lib/place", "audit_entries"];
    new TAKE_IN: ["lib/queue", "lib/place", "lib/remove", "take_in"];
}
