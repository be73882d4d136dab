use clap::Parser;
use redrive::cli::{self, Cli};
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redrive: {error}");
            error.exit_code()
        }
    }
}
