// MCP's TypeScript client does real work over Streamable HTTP. `HUB` is the hub's address, `PAGE` the address of a
// page with a button; stdin has the token.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { type CallToolResult, ResultSchema } from "@modelcontextprotocol/sdk/types.js";

const headers = { Authorization: `Bearer ${readFileSync(0, "utf8").trim()}` };

/** Runs `scenario` with a client of one server, or of all servers together. */
async function connected(path: string, scenario: (client: Client) => Promise<void>): Promise<void> {
  const client = new Client({ name: "clients.ts", version: "1" });
  const url = new URL(path, process.env.HUB);
  const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
  await client.connect(transport);
  try {
    await scenario(client);
  } finally {
    await transport.terminateSession();
    await client.close();
  }
}

async function call(client: Client, name: string, args: Record<string, unknown>) {
  const result = (await client.callTool({ name, arguments: args })) as CallToolResult;
  const texts = result.content.map((part) => (part.type === "text" ? part.text : ""));
  return { failed: result.isError === true, text: texts.join("\n") };
}

/** Repeats `question` until it has an answer. */
async function until<T>(what: string, question: () => Promise<T | undefined>): Promise<T> {
  const end = Date.now() + 60_000;
  for (;;) {
    const answer = await question();
    if (answer !== undefined) return answer;
    assert(Date.now() < end, `${what} did not appear`);
  }
}

test("the filesystem is written and read below its root, and nowhere else", () =>
  connected("/servers/filesystem/mcp", async (client) => {
    const { tools } = await client.listTools();
    assert(tools.some((tool) => tool.name === "write_file"));
    const path = "/root/host/from-typescript.txt";
    const wrote = await call(client, "write_file", { path, content: "eins\nzwei ö" });
    assert(!wrote.failed, wrote.text);
    const read = await call(client, "read_text_file", { path });
    assert.equal(read.text, "eins\nzwei ö");
    const outside = await call(client, "read_text_file", { path: "/etc/passwd" });
    assert(outside.failed && outside.text.includes("Access denied"), outside.text);
  }));

test("the linux server lists the processes of the container", () =>
  connected("/servers/linux/mcp", async (client) => {
    const processes = await call(client, "list_processes", {});
    assert(!processes.failed && processes.text.includes("companion"), processes.text);
  }));

test("a page is opened, clicked and read", () =>
  connected("/servers/browser-use/mcp", async (client) => {
    const opened = await call(client, "browser_navigate", { url: process.env.PAGE });
    assert(!opened.failed, opened.text);
    const button = await until("the button", async () => {
      const state = JSON.parse((await call(client, "browser_get_state", {})).text);
      const elements: { index: number; text: string }[] = state.interactive_elements;
      return elements.find((element) => element.text.includes("press me"));
    });
    const clicked = await call(client, "browser_click", { index: button.index });
    assert(!clicked.failed, clicked.text);
    await until("the page's new text", async () => {
      const { text } = await call(client, "browser_get_html", { selector: "#said" });
      return text.includes("it was pressed") || undefined;
    });
  }));

test("code reports its output while it runs, and returns a figure", () =>
  connected("/servers/os/mcp", async (client) => {
    const gate = "/tmp/gate-typescript";
    const code = [
      "import os, time",
      "import matplotlib.pyplot as plt",
      `if os.path.exists('${gate}'): os.remove('${gate}')`,
      "print('first', flush=True)",
      `while not os.path.exists('${gate}'): time.sleep(0.01)`,
      "print('last')",
      "_ = plt.plot([1, 2])",
    ].join("\n");
    const messages: (string | undefined)[] = [];
    let opening: Promise<unknown> | undefined;
    // The code ends only after the client has received its first output.
    const onprogress = ({ message }: { message?: string }) => {
      messages.push(message);
      opening ??= call(client, "write_file", { path: gate, content: "" });
    };
    const params = { name: "execute_python_code", arguments: { code, session: "typescript" } };
    const result = (await client.callTool(params, undefined, { onprogress })) as CallToolResult;
    await opening;
    assert(result.isError !== true, JSON.stringify(result.content).slice(0, 500));
    assert.equal(messages.join(""), "first\nlast\n");
    const figures = result.content.filter((part) => part.type === "image");
    assert.deepEqual(figures.map((figure) => figure.mimeType), ["image/png"]);
    const png = Buffer.from(figures[0].data, "base64");
    assert.equal(png.subarray(1, 4).toString(), "PNG");
    assert.equal(result.structuredContent, undefined);
  }));

test("all servers are reached through one address", () =>
  connected("/mcp?servers=filesystem,linux", async (client) => {
    const { tools } = await client.listTools();
    const servers = new Set(tools.map((tool) => tool.name.split("__")[0]));
    assert.deepEqual([...servers].sort(), ["filesystem", "linux"]);
    const listed = await call(client, "filesystem__list_directory", { path: "/root/host" });
    assert(listed.text.includes("from-typescript.txt"), listed.text);
  }));

test("the client does not resume a cancelled call repeatedly", async () => {
  const resumed: number[] = [];
  const counting = async (input: URL | string, init?: RequestInit) => {
    const response = await fetch(input, init);
    if (new Headers(init?.headers).has("last-event-id")) {
      resumed.push(response.status);
    }
    return response;
  };
  const client = new Client({ name: "clients.ts", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL("/servers/echo/mcp", process.env.HUB), {
    requestInit: { headers },
    fetch: counting,
    reconnectionOptions: {
      initialReconnectionDelay: 1,
      maxReconnectionDelay: 1,
      reconnectionDelayGrowFactor: 1,
      maxRetries: 1000,
    },
  });
  await client.connect(transport);
  const stop = new AbortController();
  const params = { steps: 1000, pause: 0.02 };
  const onprogress = () => stop.abort();
  const call = client.request({ method: "test/progress", params }, ResultSchema, { signal: stop.signal, onprogress });
  await assert.rejects(call);
  while (resumed.length === 0) {
    await client.ping();
  }
  for (let times = 0; times < 100; times += 1) {
    await client.ping();
  }
  assert.deepEqual(resumed, [204]);
  await transport.terminateSession();
  await client.close();
});

test("a client without the token is refused", async () => {
  const client = new Client({ name: "clients.ts", version: "1" });
  const url = new URL("/servers/linux/mcp", process.env.HUB);
  await assert.rejects(client.connect(new StreamableHTTPClientTransport(url)), { code: 401 });
});
