// Creates the folders of the npm packages: `node layout.mjs VERSION OUT PLATFORM=PREFIX...`.
//
// `osctl` is a small script; `osctl-PLATFORM` contains the folders `bin` and `libexec` of PREFIX. PLATFORM has
// Node's name of the platform, such as `linux-x64`. `npm pack` packs each folder in OUT.
import { chmodSync, copyFileSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "../..");
const [version, out, ...platforms] = process.argv.slice(2);
if (platforms.length === 0) {
    console.error("usage: node layout.mjs VERSION OUT PLATFORM=PREFIX...");
    process.exit(2);
}

const common = {
    version,
    license: "MIT OR Apache-2.0",
    ...(process.env.REPOSITORY && { repository: { type: "git", url: `git+${process.env.REPOSITORY}.git` } }),
};

function write(name, description, rest) {
    const folder = join(out, name);
    mkdirSync(folder, { recursive: true });
    const manifest = { name, description, ...common, ...rest };
    writeFileSync(join(folder, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
    for (const licence of ["LICENSE-APACHE", "LICENSE-MIT"]) {
        copyFileSync(join(root, licence), join(folder, licence));
    }
    return folder;
}

const optionalDependencies = {};
for (const pair of platforms) {
    const [platform, prefix] = pair.split("=");
    const [os, cpu] = platform.split("-");
    const name = `osctl-${platform}`;
    const folder = write(name, `The osctl binary for ${platform}`, {
        os: [os],
        cpu: [cpu],
        preferUnplugged: true,
    });
    for (const part of ["bin", "libexec"].filter((part) => existsSync(join(prefix, part)))) {
        mkdirSync(join(folder, part), { recursive: true });
        for (const file of readdirSync(join(prefix, part))) {
            // Copies the content of a link, because `npm pack` leaves out links.
            copyFileSync(join(prefix, part, file), join(folder, part, file));
            chmodSync(join(folder, part, file), 0o755);
        }
    }
    optionalDependencies[name] = version;
}

const folder = write("osctl", "A computer of its own for an AI agent", {
    keywords: ["agent", "sandbox", "mcp", "docker", "python"],
    bin: { osctl: "osctl.cjs" },
    engines: { node: ">=18" },
    optionalDependencies,
});
copyFileSync(join(here, "osctl.cjs"), join(folder, "osctl.cjs"));
copyFileSync(join(root, "README.md"), join(folder, "README.md"));
