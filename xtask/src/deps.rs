//! The dependencies, held to deny.toml: licences, sources, wildcards and banned crates, as `cargo metadata` has them.
//!
//! This is the part of `cargo deny check` that needs neither its program, which takes minutes to build, nor a database
//! of advisories from the network. Both read the same file; a setting that this does not know is an error where it would
//! allow less than it does.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::{cargo, licence};

#[derive(Deserialize)]
struct Deny {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
}

/// Exceptions and clarifications, which would allow more, are not known: without them this is the stricter one.
#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

/// Checks the dependencies of the workspace in `root`.
///
/// # Errors
/// All that deny.toml does not allow, a line each.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let file = root.join("deny.toml");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let deny: Deny = toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let metadata = metadata(root, &deny.graph.targets)?;
    let wrong = violations(&deny, &metadata);
    for (name, versions) in several(&metadata) {
        println!("note: {name} is there in {} versions: {}", versions.len(), versions.join(", "));
    }
    if wrong.is_empty() {
        println!("{} packages keep to deny.toml", metadata.resolve.nodes.len());
        return Ok(());
    }
    Err(format!("the dependencies do not keep to deny.toml:\n{}", wrong.join("\n")))
}

/// All packages that the workspace is built from on any of `targets`, with all features.
fn metadata(root: &Path, targets: &[String]) -> Result<Metadata, String> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--all-features"]).current_dir(root);
    for target in targets {
        command.args(["--filter-platform", target]);
    }
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{command:?}: {e}"))
}

/// The packages that are used: `packages` has those of other targets too.
fn used(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.packages.iter().filter(|package| metadata.resolve.nodes.iter().any(|node| node.id == package.id))
}

fn violations(deny: &Deny, metadata: &Metadata) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in used(metadata) {
        let mut say = |what: String| wrong.push(format!("{} {}: {what}", package.name, package.version));
        match &package.license {
            Some(expression) if licence::satisfied(expression, &deny.licenses.allow) => {}
            Some(expression) => say(format!("its licence, {expression}, is not allowed")),
            None => say("it names no licence".into()),
        }
        if let Some(banned) = deny.bans.deny.iter().find(|banned| banned.name == package.name) {
            say(format!("it is banned: {}", banned.reason));
        }
        let is_member = metadata.workspace_members.contains(&package.id);
        match &package.source {
            None if is_member => {}
            None => say("it is from a path outside the workspace".into()),
            Some(source) => {
                let registry = source.strip_prefix("registry+").unwrap_or(source);
                if !deny.sources.allow_registry.iter().any(|allowed| allowed == registry) {
                    say(format!("its source, {source}, is not allowed"));
                }
            }
        }
        let wildcards = package.dependencies.iter().filter(|dep| dep.req == "*" && dep.path.is_none());
        if is_member {
            wildcards.for_each(|dep| say(format!("it takes any version of {}", dep.name)));
        }
    }
    wrong
}

/// Crates of which several versions are used, with these.
fn several(metadata: &Metadata) -> Vec<(&str, Vec<&str>)> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    used(metadata).for_each(|package| versions.entry(&package.name).or_default().push(&package.version));
    versions.into_iter().filter(|(_, versions)| versions.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DENY: &str = r#"
        [graph]
        targets = []
        [licenses]
        allow = ["MIT"]
        [bans]
        deny = [{ crate = "bad", reason = "it is" }]
        [sources]
        allow-registry = ["https://a"]
    "#;

    fn package(name: &str, license: Option<&str>, source: Option<&str>, req: &str) -> serde_json::Value {
        let dependencies = json!([{ "name": "dep", "req": req, "path": null }]);
        json!({ "id": name, "name": name, "version": "1.0.0", "license": license, "source": source,
                "dependencies": dependencies })
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let deny: Deny = toml::from_str(DENY).unwrap();
        let packages = [
            package("own", Some("MIT"), None, "^1"),
            package("wild", Some("MIT"), None, "*"),
            package("good", Some("MIT OR GPL-3.0"), Some("registry+https://a"), "*"),
            package("bad", Some("GPL-3.0"), Some("registry+https://b"), "^1"),
            package("bare", None, Some("git+https://a"), "^1"),
            package("path", Some("MIT"), None, "^1"),
            package("unused", None, None, "^1"),
        ];
        let nodes: Vec<_> = packages[..6].iter().map(|package| json!({ "id": package["id"] })).collect();
        let metadata = json!({ "packages": packages, "workspace_members": ["own", "wild"], "resolve": { "nodes": nodes } });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let expected = [
            "wild 1.0.0: it takes any version of dep",
            "bad 1.0.0: its licence, GPL-3.0, is not allowed",
            "bad 1.0.0: it is banned: it is",
            "bad 1.0.0: its source, registry+https://b, is not allowed",
            "bare 1.0.0: it names no licence",
            "bare 1.0.0: its source, git+https://a, is not allowed",
            "path 1.0.0: it is from a path outside the workspace",
        ];
        assert_eq!(violations(&deny, &metadata), expected);
        assert!(several(&metadata).is_empty());
    }
}
