//! The cache on disk of the handshake and the lists of a server's last start. The hub answers lists from it
//! immediately, without starting the server. The lists of the packaged servers come with the image.

use super::message::{find_elements, find_raw, find_string, find_value};
use anyhow::{Context, Result};
use bytes::Bytes;
use osctl_support::atomic_write::{Durability, atomic_write};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The cached lists: the method, the capability of a server that has such a list, and the notification of a change.
pub(super) const CACHED_LIST_METHODS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "notifications/tools/list_changed"),
    (
        "prompts/list",
        "prompts",
        "notifications/prompts/list_changed",
    ),
    (
        "resources/list",
        "resources",
        "notifications/resources/list_changed",
    ),
    (
        "resources/templates/list",
        "resources",
        "notifications/resources/list_changed",
    ),
];

#[derive(Debug)]
pub(super) struct ServerCache {
    path: PathBuf,
    digest: String,
    cached: Mutex<CachedServer>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CachedServer {
    digest: String,
    /// The result of `initialize`.
    #[serde(alias = "hello")]
    initialize_result: Option<Box<RawValue>>,
    /// The pages of each list by its method.
    lists: BTreeMap<String, Vec<McpListPage>>,
}

/// One page of a list, and the cursor of its request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct McpListPage {
    pub(super) cursor: Option<String>,
    pub(super) result: Box<RawValue>,
}

impl PartialEq for McpListPage {
    fn eq(&self, other: &Self) -> bool {
        self.cursor == other.cursor && self.result.get() == other.result.get()
    }
}

impl ServerCache {
    /// Reads the file, if it belongs to the same server, or else the image's file with the same form: a server that
    /// has never started has the lists that came with it. The digest in the image's file is the server's command.
    pub(super) fn open(path: PathBuf, digest: String, packaged: Option<(PathBuf, &str)>) -> Self {
        let read = |path: &Path, digest: &str| {
            let found = fs::read(path).ok()?;
            let cached: CachedServer = serde_json::from_slice(&found).ok()?;
            (cached.digest == digest).then_some(cached)
        };
        let packaged = || packaged.and_then(|(path, command)| read(&path, command));
        let cached = read(&path, &digest).or_else(packaged);
        Self {
            path,
            digest,
            cached: Mutex::new(cached.unwrap_or_default()),
        }
    }

    pub(super) fn initialize_result(&self) -> Option<Bytes> {
        let cached = self.cached.lock();
        cached
            .initialize_result
            .as_ref()
            .map(|result| Bytes::copy_from_slice(result.get().as_bytes()))
    }

    /// Whether the server declared this capability; `None` if there is no cached handshake.
    pub(super) fn has_capability(&self, capability: &str) -> Option<bool> {
        let cached = self.cached.lock();
        let result = cached.initialize_result.as_ref()?.get();
        Some(find_value(result, &["capabilities", capability]).is_some())
    }

    /// The text at this path of the `initialize` result.
    pub(super) fn handshake_text(&self, path: &[&str]) -> Option<String> {
        let cached = self.cached.lock();
        let result = cached.initialize_result.as_ref()?.get();
        find_string(result, path)
    }

    /// One page of a list.
    pub(super) fn list_page(&self, method: &str, cursor: Option<&str>) -> Option<String> {
        let cached = self.cached.lock();
        let mut pages = cached.lists.get(method)?.iter();
        let page = pages.find(|page| page.cursor.as_deref() == cursor)?;
        Some(page.result.get().to_owned())
    }

    /// All pages of a list; `None` if the list is not cached.
    pub(super) fn list_pages(&self, method: &str) -> Option<Vec<String>> {
        let cached = self.cached.lock();
        let pages = cached.lists.get(method)?.iter();
        Some(pages.map(|page| page.result.get().to_owned()).collect())
    }

    /// The names of the tools in the cached list.
    pub(super) fn tool_names(&self) -> Vec<String> {
        let pages = self.list_pages("tools/list").unwrap_or_default();
        let tools = pages.iter().flat_map(|page| find_elements(page, "tools"));
        tools
            .filter_map(|tool| find_string(tool, &["name"]))
            .collect()
    }

    /// Whether the server declares that the tool changes nothing.
    pub(super) fn is_read_only_tool(&self, name: &str) -> bool {
        let tool = self.tool_description(name, "readOnlyHint");
        tool.is_some_and(|tool| find_raw(&tool, &["annotations", "readOnlyHint"]) == Some("true"))
    }

    /// The raw description of a tool, if it contains `word`.
    pub(super) fn tool_description(&self, name: &str, word: &str) -> Option<String> {
        let cached = self.cached.lock();
        let pages = cached.lists.get("tools/list")?.iter();
        let pages = pages.map(|page| page.result.get());
        let pages = pages.filter(|page| page.contains(word));
        let tools = pages.flat_map(|page| find_elements(page, "tools"));
        let is_meant = |tool: &&str| find_string(tool, &["name"]).as_deref() == Some(name);
        tools
            .filter(|tool| tool.contains(word))
            .find(is_meant)
            .map(str::to_owned)
    }

    pub(super) fn store_initialize_result(&self, result: &str) {
        let mut cached = self.cached.lock();
        cached.initialize_result = RawValue::from_string(result.into()).ok();
        drop(cached);
        self.save();
    }

    /// Stores a list. Returns whether a different list was stored before.
    pub(super) fn store_list(&self, method: &str, pages: Vec<McpListPage>) -> bool {
        let mut cached = self.cached.lock();
        if cached.lists.get(method) == Some(&pages) {
            return false;
        }
        let before = cached.lists.insert(method.into(), pages);
        drop(cached);
        self.save();
        before.is_some()
    }

    fn save(&self) {
        let mut cached = self.cached.lock();
        cached.digest.clone_from(&self.digest);
        if let Err(error) = write_json(&self.path, &*cached) {
            // The next start of the server writes the file again.
            tracing::warn!(
                path = %self.path.display(),
                error = %format_args!("{error:#}"),
                "the hub can't write the cache of a server"
            );
        }
    }
}

/// Replaces a JSON file. Creates the folder if it is missing.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let folder = path.parent().context("the file path has no folder")?;
    fs::create_dir_all(folder)?;
    atomic_write(path, &serde_json::to_vec(value)?, Durability::Renamed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{McpListPage, ServerCache};
    use serde_json::value::RawValue;
    use std::fs;

    fn page(text: &str) -> McpListPage {
        McpListPage {
            cursor: None,
            result: RawValue::from_string(text.into()).unwrap(),
        }
    }

    #[test]
    fn the_cache_keeps_the_bytes_until_the_server_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache/a.json");
        let cache = ServerCache::open(path.clone(), "1".into(), None);
        cache.store_initialize_result(r#"{"capabilities":{"tools":{}},"serverInfo":{"name":"x"}}"#);
        let list = r#"{"tools":[], "n":1.0}"#;
        assert!(!cache.store_list("tools/list", vec![page(list)]));
        assert!(!cache.store_list("tools/list", vec![page(list)]));
        let packaged = folder.path().join("packaged.json");
        fs::copy(&path, &packaged).unwrap();
        let again = ServerCache::open(path.clone(), "1".into(), None);
        assert_eq!(again.list_page("tools/list", None).as_deref(), Some(list));
        assert_eq!(again.list_page("tools/list", Some("x")), None);
        assert_eq!(
            (
                again.has_capability("tools"),
                again.has_capability("prompts")
            ),
            (Some(true), Some(false))
        );
        assert_eq!(
            again.handshake_text(&["serverInfo", "name"]).as_deref(),
            Some("x")
        );
        let tools = r#"{"tools":[{"name":"a","annotations":{"readOnlyHint":true}},{"name":"b","annotations":{"readOnlyHint":false}},{"name":"c"}]}"#;
        assert!(again.store_list("tools/list", vec![page(tools)]));
        assert_eq!(again.tool_names(), ["a", "b", "c"]);
        let read_only = ["a", "b", "c", "d"].map(|name| again.is_read_only_tool(name));
        assert_eq!(read_only, [true, false, false, false]);
        assert!(again.store_list("tools/list", vec![page("{}")]));
        let other = ServerCache::open(path.clone(), "2".into(), Some((packaged.clone(), "other")));
        assert!(other.initialize_result().is_none() && other.has_capability("tools").is_none());
        // A server that has not started yet has the lists of the image, until it starts.
        let fresh = ServerCache::open(path, "2".into(), Some((packaged, "1")));
        assert_eq!(fresh.list_page("tools/list", None).as_deref(), Some(list));
        assert!(fresh.store_list("tools/list", vec![page("{}")]));
    }
}
