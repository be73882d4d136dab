//! The embedded engine: SQLite, one writer with group commit, readers beside it.
