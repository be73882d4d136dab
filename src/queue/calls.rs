//! What is asked of the queue, and what is answered.

mod dead_letters;
mod import;
mod jobs;
mod operator;

pub use dead_letters::*;
pub use import::*;
pub use jobs::*;
pub use operator::*;
