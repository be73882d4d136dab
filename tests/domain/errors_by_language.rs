//! What real libraries say about real faults (`script/errors-by-language` writes it down), and the category of each.

use redrive::domain::{Failure, FailureCategory, derived_category};
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

const ROWS: &str = include_str!("errors_by_language.tsv");
const PAGE: &str = "docs/errors-by-language.md";
const REWRITE: &str = "REDRIVE_WRITE_PAGES=1 cargo test --test domain errors_by_language";

const HEAD: &str = "\
# Errors by language

Error rules match on a **category**, which means the same in every language. A worker may give it; where it does not, the server derives it from
`http_status`, then `code`, then well-known names of `type`, then words of the `message`. What follows is what the libraries really say, as a plain handler has
it at hand, and the category that this build derives from it:

- Python: `type(e).__name__`, `str(e)`; the code is `e.sqlstate`, `e.code` or the name of `e.errno`, the status `e.response.status_code`
- Node: `err.name`, `err.message`; the code is `err.code`, the status `err.response.status`, or `response.status` where the library throws nothing
- Go: `fmt.Sprintf(\"%T\", err)`, `err.Error()`; the code is `SQLState()` where `errors.As` finds one, the status `response.StatusCode`

A category in this table is the same without the status. What is not known to the server has none and is retried by the queue's policy; a rule, or a category given by the worker, is the
remedy, and a line in `src/domain/error_categories.txt` the lasting one. Which categories are retried how: [default rules](policies-and-error-rules.md#default-rules).

The rows are made by `script/errors-by-language`, which brings the faults about; this page is made by a test. Messages are cut to their first line.
";

struct Row {
    language: &'static str,
    library: &'static str,
    fault: &'static str,
    failure: Failure,
}

fn rows() -> Vec<Row> {
    let lines = ROWS.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| row(line).unwrap_or_else(|| panic!("seven columns: {line}"))).collect()
}

fn row(line: &'static str) -> Option<Row> {
    let mut cells = line.split('\t');
    let (language, library, fault) = (cells.next()?, cells.next()?, cells.next()?);
    let (error_type, code, http_status, message) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
    let failure = Failure {
        code: code.into(),
        http_status: http_status.parse().unwrap_or(0),
        ..Failure::new(error_type, message.replace("\\n", "\n").replace("\\\\", "\\"))
    };
    Some(Row { language, library, fault, failure })
}

/// What is meant by the fault, whatever the library says about it.
fn expected(row: &Row) -> FailureCategory {
    match (row.library, row.fault) {
        // They say the same of a connection that was reset. Both categories are retried alike.
        ("http", "timeout, destroy()") | ("database/sql, lib/pq", "shutdown") => FailureCategory::Unreachable,
        (_, "refused" | "reset" | "DNS" | "TLS") => FailureCategory::Unreachable,
        (_, fault) if fault.starts_with("timeout") => FailureCategory::Timeout,
        (_, "404" | "no rows") => FailureCategory::NotFound,
        (_, "429") => FailureCategory::RateLimited,
        (_, "500") => FailureCategory::Internal,
        (_, "503" | "shutdown") => FailureCategory::Unavailable,
        (_, "deadlock" | "changed while watched") => FailureCategory::Conflict,
        (_, "validation") => FailureCategory::Invalid,
        (library, fault) => panic!("what should {fault} of {library} be?"),
    }
}

#[test]
fn every_fault_has_the_category_that_is_meant_with_and_without_its_status() {
    let mut wrong = Vec::new();
    for row in rows() {
        let bare = Failure { http_status: 0, ..row.failure.clone() };
        for failure in [&row.failure, &bare] {
            let derived = derived_category(failure);
            if derived != Some(expected(&row)) {
                let Row { language, library, fault, .. } = row;
                wrong.push(format!("{language}, {library}, {fault}: {derived:?} of {failure:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_library_has_every_fault_that_it_can_have() {
    let rows = rows();
    let transport = ["refused", "reset", "DNS", "TLS", "timeout"];
    let (statuses, sql) = (["404", "429", "500", "503", "validation"], ["deadlock", "validation"]);
    let over_http =
        ["urllib", "requests", "httpx", "fetch", "http", "axios", "net/http"].map(|name| (name, &statuses[..]));
    let databases = ["psycopg", "pg", "database/sql, pgx", "database/sql, lib/pq"].map(|name| (name, &sql[..]));
    for (library, own) in over_http.into_iter().chain(databases).chain([("redis", &[][..])]) {
        for fault in transport.iter().chain(own) {
            let found = rows.iter().any(|row| row.library == library && row.fault == *fault);
            assert!(found, "{library} has no row for {fault}");
        }
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut language = "";
    for row in rows() {
        if row.language != language {
            language = row.language;
            let versions = ROWS.lines().filter_map(|line| line.strip_prefix("# "));
            let versions = versions.into_iter().find(|line| line.starts_with(&format!("{language} "))).unwrap();
            writeln!(page, "\n## {language}\n\n{versions}.\n").unwrap();
            page.push_str(
                "| library | fault | type | code | status | message | category |\n|---|---|---|---|---|---|---|\n",
            );
        }
        let category = derived_category(&row.failure).map_or("none", FailureCategory::as_str);
        let Failure { error_type, code, http_status, message, .. } = &row.failure;
        let status = if *http_status == 0 { String::new() } else { http_status.to_string() };
        let (error_type, code, message) = (quoted(error_type), quoted(code), quoted(&shortened(message)));
        let (library, fault) = (row.library, row.fault);
        writeln!(page, "| {library} | {fault} | {error_type} | {code} | {status} | {message} | {category} |").unwrap();
    }
    page
}

fn shortened(message: &str) -> String {
    const CHARS: usize = 120;
    let line = message.lines().next().unwrap_or_default();
    let head: String = line.chars().take(CHARS).collect();
    if head.len() < line.len() { format!("{head} …") } else { head }
}

fn quoted(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('`', "'");
    if text.is_empty() { text } else { format!("`{text}`") }
}

#[test]
fn the_page_shows_the_rows_and_their_categories() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if env::var_os("REDRIVE_WRITE_PAGES").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let shown = fs::read_to_string(&path).unwrap_or_default();
    let differs = shown.lines().zip(page().lines().map(str::to_owned)).find(|(shown, made)| shown != made);
    assert!(shown == page(), "{PAGE} is not what the rows make; rewrite it: {REWRITE}\n{differs:?}");
}
