// A server with all that the conformance suite requires, over stdio, or over HTTP with `PORT=N`.

import { randomUUID } from "node:crypto";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { pause, plain, prompts, read, resources, text } from "./stock.mjs";

const answered = (result) => [text(`User response: action=${result.action}, content=${JSON.stringify(result.content)}`)];

const ask = (extra, message, properties, required) =>
  extra.sendRequest(
    { method: "elicitation/create", params: { message, requestedSchema: { type: "object", properties, required } } },
    types.ElicitResultSchema,
  );

const titles = [1, 2, 3].map((n) => ({ const: `value${n}`, title: `Title ${n}` }));
const options = ["option1", "option2", "option3"];

const tools = {
  ...plain,
  test_tool_with_logging: async (_, extra) => {
    for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      await extra.sendNotification({ method: "notifications/message", params: { level: "info", data } });
      await pause();
    }
    return [text("Done")];
  },
  test_tool_with_progress: async (_, extra) => {
    const progressToken = extra._meta?.progressToken ?? 0;
    for (const progress of [0, 50, 100]) {
      const params = { progressToken, progress, total: 100, message: `Completed step ${progress} of 100` };
      await extra.sendNotification({ method: "notifications/progress", params });
      await pause();
    }
    return [text(String(progressToken))];
  },
  test_sampling: async ({ prompt }, extra) => {
    const params = { messages: [{ role: "user", content: text(prompt) }], maxTokens: 100 };
    const result = await extra.sendRequest({ method: "sampling/createMessage", params }, types.CreateMessageResultSchema);
    return [text(`LLM response: ${result.content.text}`)];
  },
  test_elicitation: async ({ message }, extra) =>
    answered(
      await ask(
        extra,
        message,
        {
          username: { type: "string", description: "User's response" },
          email: { type: "string", description: "User's email address" },
        },
        ["username", "email"],
      ),
    ),
  test_elicitation_sep1034_defaults: async (_, extra) =>
    answered(
      await ask(extra, "Please review and update the form fields with defaults", {
        name: { type: "string", description: "User name", default: "John Doe" },
        age: { type: "integer", description: "User age", default: 30 },
        score: { type: "number", description: "User score", default: 95.5 },
        status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
        verified: { type: "boolean", description: "Verification status", default: true },
      }),
    ),
  test_elicitation_sep1330_enums: async (_, extra) =>
    answered(
      await ask(extra, "Please select options from the enum fields", {
        untitledSingle: { type: "string", enum: options },
        titledSingle: { type: "string", oneOf: titles },
        legacyEnum: { type: "string", enum: ["opt1", "opt2", "opt3"], enumNames: ["One", "Two", "Three"] },
        untitledMulti: { type: "array", items: { type: "string", enum: options } },
        titledMulti: { type: "array", items: { anyOf: titles } },
      }),
    ),
};

const address = { type: "object", properties: { street: { type: "string" }, city: { type: "string" } } };
const schemas = {
  json_schema_2020_12_tool: {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    type: "object",
    $defs: { address },
    properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" } },
    additionalProperties: false,
  },
  test_sampling: { type: "object", properties: { prompt: { type: "string" } }, required: ["prompt"] },
  test_elicitation: { type: "object", properties: { message: { type: "string" } }, required: ["message"] },
};

function server() {
  const capabilities = {
    tools: {},
    prompts: {},
    resources: { subscribe: true },
    logging: {},
    completions: {},
  };
  const made = new Server({ name: "reference", version: "1.0.0" }, { capabilities });
  made.setRequestHandler(types.ListToolsRequestSchema, () => ({
    tools: Object.keys(tools).map((name) => ({
      name,
      description: `The tool ${name}`,
      inputSchema: schemas[name] ?? { type: "object", properties: {} },
    })),
  }));
  made.setRequestHandler(types.CallToolRequestSchema, async ({ params }, extra) => {
    try {
      return { content: await tools[params.name](params.arguments ?? {}, extra) };
    } catch (error) {
      return { content: [text(error.message)], isError: true };
    }
  });
  made.setRequestHandler(types.ListPromptsRequestSchema, () => ({
    prompts: Object.entries(prompts).map(([name, [names]]) => ({
      name,
      description: `The prompt ${name}`,
      arguments: names.map((name) => ({ name, description: name, required: true })),
    })),
  }));
  made.setRequestHandler(types.GetPromptRequestSchema, ({ params }) => ({
    messages: prompts[params.name][1](params.arguments ?? {}).map((content) => ({ role: "user", content })),
  }));
  made.setRequestHandler(types.ListResourcesRequestSchema, () => ({
    resources: Object.entries(resources).map(([uri, { mimeType }]) => ({ uri, name: uri, mimeType })),
  }));
  made.setRequestHandler(types.ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template" }],
  }));
  made.setRequestHandler(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const found = read(uri);
    if (!found) {
      throw new types.McpError(-32002, `there is no ${uri}`, { uri });
    }
    return { contents: [found] };
  });
  made.setRequestHandler(types.SubscribeRequestSchema, () => ({}));
  made.setRequestHandler(types.UnsubscribeRequestSchema, () => ({}));
  made.setRequestHandler(types.SetLevelRequestSchema, () => ({}));
  made.setRequestHandler(types.CompleteRequestSchema, () => ({ completion: { values: [], total: 0, hasMore: false } }));
  return made;
}

async function overHttp(port) {
  const sessions = new Map();
  const app = createMcpExpressApp();
  app.all("/mcp", async (request, response) => {
    const id = request.headers["mcp-session-id"];
    let transport = sessions.get(id);
    if (!transport) {
      if (id || request.body?.method !== "initialize") {
        return response.status(id ? 404 : 400).json({ jsonrpc: "2.0", id: null, error: { code: -32600, message: "no session" } });
      }
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await server().connect(transport);
    }
    await transport.handleRequest(request, response, request.body);
  });
  app.listen(port, "127.0.0.1", () => console.error("listening"));
}

if (process.env.PORT) {
  await overHttp(Number(process.env.PORT));
} else {
  await server().connect(new StdioServerTransport());
}
