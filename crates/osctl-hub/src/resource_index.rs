//! The resources that a server's answers link to. The server's lists need not contain them, and a later request for
//! one must be routed to the same server.

use super::message::{RpcMessage, find_elements, find_raw, find_string};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};

/// The most resources kept of one server; beyond it the oldest is dropped.
const MAX_INDEXED_RESOURCES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct ResourceIndex(Mutex<ResourceIndexState>);

#[derive(Debug, Default)]
struct ResourceIndexState {
    uris: HashSet<String>,
    insertion_order: VecDeque<String>,
}

impl ResourceIndex {
    /// Records all links of an answer.
    pub(super) fn index_answer(&self, answer: &RpcMessage) {
        let result = answer.result().unwrap_or_default();
        // Most answers have no link; this check is cheap.
        if !result.contains("\"uri\"") {
            return;
        }
        for key in ["content", "contents"] {
            for content in find_elements(result, key) {
                self.index_content(content);
            }
        }
        for message in find_elements(result, "messages") {
            self.index_content(find_raw(message, &["content"]).unwrap_or_default());
        }
    }

    fn index_content(&self, content: &str) {
        for path in [&["uri"][..], &["resource", "uri"]] {
            if let Some(uri) = find_string(content, path) {
                self.add_uri(uri);
            }
        }
    }

    pub(super) fn add_uri(&self, uri: String) {
        let mut state = self.0.lock();
        if !state.uris.insert(uri.clone()) {
            return;
        }
        state.insertion_order.push_back(uri);
        if state.insertion_order.len() > MAX_INDEXED_RESOURCES
            && let Some(oldest) = state.insertion_order.pop_front()
        {
            state.uris.remove(&oldest);
        }
    }

    pub(super) fn contains_uri(&self, uri: &str) -> bool {
        let state = self.0.lock();
        state.uris.contains(uri)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_INDEXED_RESOURCES, ResourceIndex};

    #[test]
    fn linked_resources_are_indexed_and_the_oldest_is_dropped() {
        let links = ResourceIndex::default();
        for answer in [
            r#"{"id":1,"result":{"content":[{"type":"resource_link","uri":"a:1"},{"type":"resource","resource":{"uri":"a:2"}}]}}"#,
            r#"{"id":1,"result":{"contents":[{"uri":"a:3","text":"x"}]}}"#,
            r#"{"id":1,"result":{"messages":[{"content":{"type":"resource","resource":{"uri":"a:4"}}}]}}"#,
            r#"{"id":1,"result":{"content":[{"type":"text","text":"\"uri\""}],"uri":"a:5"}}"#,
            r#"{"id":1,"error":{"data":{"uri":"a:6"}}}"#,
            r#"no "uri" at all"#,
        ] {
            links.index_answer(&answer.into());
        }
        for uri in ["a:1", "a:2", "a:3", "a:4"] {
            assert!(links.contains_uri(uri), "{uri}");
        }
        assert!(!links.contains_uri("a:5") && !links.contains_uri("a:6"));
        for number in 0..MAX_INDEXED_RESOURCES {
            links.add_uri(format!("b:{number}"));
        }
        assert!(!links.contains_uri("a:1") && links.contains_uri("b:0"));
    }
}
