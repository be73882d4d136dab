//! The decisions: pure functions of their arguments. Nothing here waits, reads a clock or randomness, or knows a store.

mod admission;
mod backoff;
mod bounds;
mod breaker;
mod category;
mod dead_filter;
pub mod duration;
mod failure;
mod glob;
mod ids;
mod job;
mod lease;
mod limits;
mod macros;
mod max_rate;
mod near_miss;
mod pause;
mod policy;
mod presets;
mod rate;
mod retry;
mod rng;
mod rules;
mod sameness;
mod settings;
mod store_clock;
mod time;

pub(crate) use macros::with_defaults;

pub use self::{
    admission::*, backoff::*, bounds::*, breaker::*, category::*, dead_filter::*, failure::*, glob::*, ids::*, job::*,
    lease::*, limits::*, max_rate::*, near_miss::*, pause::*, policy::*, presets::*, rate::*, retry::*, rng::*,
    rules::*, sameness::*, settings::*, store_clock::*, time::*,
};
