use redrive::cli;
use std::process::ExitCode;

/// Jobs pass through many threads on their way: the system's allocator spends a tenth of the server's time on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("redrive: {error}");
            error.exit_code()
        }
    }
}
