//! The common parts of both HTTP interfaces, the API and the hub of MCP servers: the form of a refusal, and the
//! extractors that refuse an invalid request.
//!
//! The companion's `refusal_table` converts the refusals of its parts.

mod extractors;
mod refusal;

pub use extractors::{
    ExtractorTexts, JsonBody, MAX_REQUEST_BODY_BYTES, PathId, QueryParams, RawBody,
};
pub use refusal::{ApiRefusal, ApiResult, FIELD_DOCS_HINT, reject_wrong_method};
