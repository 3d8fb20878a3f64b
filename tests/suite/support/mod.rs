/// A private PostgreSQL for the test process.
pub mod postgres;
