// A server of only the revision 2026-07-28, with all that the conformance suite requires, over stdio, or over HTTP
// with `PORT=N`. It uses no library, so that it contains only that revision.

import { createHmac, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { pause, plain, prompts, read, resources, text } from "./stock.mjs";

const VERSION = "2026-07-28";
const PREFIX = "io.modelcontextprotocol/";
const INFO = { name: "modern", version: "1.0.0" };

class Refusal extends Error {
  constructor(code, message, data) {
    super(message);
    this.error = { code, message, ...(data && { data }) };
  }
}

/** The open subscriptions by the id of their request: the requested notifications, and the function that sends them. */
const listeners = new Map();

function changed(kind) {
  for (const [id, { wants, tell }] of listeners) {
    if (wants[`${kind}ListChanged`]) {
      tell({ method: `notifications/${kind}/list_changed`, params: { _meta: { [`${PREFIX}subscriptionId`]: id } } });
    }
  }
}

function touched(uri) {
  for (const [id, { wants, tell }] of listeners) {
    if (wants.resourceSubscriptions?.includes(uri)) {
      const params = { _meta: { [`${PREFIX}subscriptionId`]: id }, uri };
      tell({ method: "notifications/resources/updated", params });
    }
  }
}

const schema = (name, type) => ({ type: "object", properties: { [name]: { type } }, required: [name] });
const elicit = (message, name = "name", type = "string") => ({
  method: "elicitation/create",
  params: { mode: "form", message, requestedSchema: schema(name, type) },
});
const sample = (words) => ({
  method: "sampling/createMessage",
  params: { messages: [{ role: "user", content: text(words) }], maxTokens: 100 },
});
const roots = { method: "roots/list", params: {} };

const SECRET = randomBytes(16);
const sealed = (state) => `${state}.${createHmac("sha256", SECRET).update(state).digest("hex")}`;
function opened(state) {
  const [inner] = String(state).split(".");
  if (state !== sealed(inner)) {
    throw new Refusal(-32602, "the state was changed");
  }
  return inner;
}

const wanted = (inputRequests, state) => ({
  resultType: "input_required",
  inputRequests,
  ...(state && { requestState: sealed(state) }),
});

/** Requests input until every key has a valid answer. */
function asked(inputs, state) {
  return (params) => {
    const responses = params.inputResponses;
    if (params.requestState !== undefined) {
      opened(params.requestState);
    }
    if (responses === null) {
      throw new Refusal(-32602, "the responses are not an object");
    }
    const isFine = ([key, { method }]) => {
      const response = responses?.[key];
      const field = { "elicitation/create": "action", "roots/list": "roots", "sampling/createMessage": "content" }[method];
      return response !== undefined && response !== null && response[field] !== undefined;
    };
    if (!responses || !Object.entries(inputs).every(isFine)) {
      return wanted(inputs, state);
    }
    return { content: [text(`state-ok ${JSON.stringify(responses)}`)] };
  };
}

const asking = {
  test_input_required_result_elicitation: asked({ user_name: elicit("What is your name?") }),
  test_input_required_result_sampling: asked({ capital_question: sample("What is the capital of France?") }),
  test_input_required_result_list_roots: asked({ client_roots: roots }),
  test_input_required_result_request_state: asked({ confirm: elicit("Please confirm", "ok", "boolean") }, "state"),
  test_input_required_result_tampered_state: asked({ confirm: elicit("Please confirm", "ok", "boolean") }, "state"),
  test_input_required_result_multiple_inputs: asked(
    { user_name: elicit("What is your name?"), greeting: sample("Generate a greeting"), client_roots: roots },
    "state",
  ),
  test_input_required_result_multi_round: (params) => {
    const state = params.requestState === undefined ? "" : opened(params.requestState);
    if (state === "round-2" && params.inputResponses?.step2) {
      return { content: [text("both are known")] };
    }
    if (state === "round-1" && params.inputResponses?.step1) {
      return wanted({ step2: elicit("Step 2: What is your favorite color?", "color") }, "round-2");
    }
    return wanted({ step1: elicit("Step 1: What is your name?") }, "round-1");
  },
  test_input_required_result_capabilities: (params, { can }) => {
    const inputs = { ...(can.sampling && { question: sample("Well?") }), ...(can.elicitation && { name: elicit("Who?") }) };
    return asked(inputs)(params);
  },
  test_streaming_elicitation: asked({ user_name: elicit("What is your name?") }),
  test_missing_capability: (_, { can }) => {
    if (!can.sampling) {
      throw new Refusal(-32021, "the client must be able to sample", { requiredCapabilities: { sampling: {} } });
    }
    return { content: [text("it can")] };
  },
  test_logging_tool: async (params, { tell }) => {
    const level = params._meta[`${PREFIX}logLevel`];
    if (level) {
      tell({ method: "notifications/message", params: { level, data: "It logs." } });
    }
    return { content: [text("done")] };
  },
  test_tool_with_progress: async (params, { tell }) => {
    const progressToken = params._meta.progressToken ?? 0;
    for (const progress of [0, 50, 100]) {
      tell({ method: "notifications/progress", params: { progressToken, progress, total: 100 } });
      await pause();
    }
    return { content: [text(String(progressToken))] };
  },
  test_trigger_tool_change: () => (changed("tools"), { content: [text("done")] }),
  test_trigger_prompt_change: () => (changed("prompts"), { content: [text("done")] }),
  test_touch: ({ arguments: { uri } }) => (touched(uri), { content: [text("done")] }),
  test_client: ({ _meta }) => ({ content: [text(JSON.stringify(_meta))] }),
};

const questions = {
  test_input_required_result_prompt: asked({ user_context: elicit("What context should the prompt use?", "context") }),
};

const listed = (name, more) => ({ name, description: `It is called ${name}`, ...more });
const cached = { ttlMs: 1000, cacheScope: "public" };

const methods = {
  "server/discover": () => ({
    supportedVersions: [VERSION],
    capabilities: {
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { subscribe: true },
      logging: {},
      completions: {},
    },
    instructions: "It knows the newest revision alone.",
    ...cached,
  }),
  "tools/list": () => ({
    tools: Object.keys({ ...plain, ...asking }).map((name) => listed(name, { inputSchema: { type: "object" } })),
    ...cached,
  }),
  "tools/call": async (params, context) => {
    const { name } = params;
    if (asking[name]) {
      return asking[name](params, context);
    }
    if (!plain[name]) {
      throw new Refusal(-32602, `there is no tool ${name}`);
    }
    try {
      return { content: await plain[name](params.arguments ?? {}) };
    } catch (error) {
      return { content: [text(error.message)], isError: true };
    }
  },
  "prompts/list": () => ({
    prompts: [
      ...Object.entries(prompts).map(([name, [names]]) =>
        listed(name, { arguments: names.map((name) => ({ name, required: true })) }),
      ),
      ...Object.keys(questions).map((name) => listed(name)),
    ],
    ...cached,
  }),
  "prompts/get": (params) => {
    const asked = questions[params.name]?.(params);
    if (asked?.inputRequests) {
      return asked;
    }
    const contents = asked?.content ?? prompts[params.name][1](params.arguments ?? {});
    return { messages: contents.map((content) => ({ role: "user", content })) };
  },
  "resources/list": () => ({
    resources: Object.entries(resources).map(([uri, { mimeType }]) => ({ uri, name: uri, mimeType })),
    ...cached,
  }),
  "resources/templates/list": () => ({
    resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template" }],
    ...cached,
  }),
  "resources/read": ({ uri }) => {
    const found = read(uri);
    if (!found) {
      throw new Refusal(-32602, `there is no ${uri}`, { uri });
    }
    return { contents: [found], ...cached };
  },
  "completion/complete": () => ({ completion: { values: [], total: 0, hasMore: false } }),
  "subscriptions/listen": ({ notifications }, { id, tell, whenClosed }) => {
    listeners.set(id, { wants: notifications, tell });
    const params = { _meta: { [`${PREFIX}subscriptionId`]: id }, notifications };
    tell({ method: "notifications/subscriptions/acknowledged", params });
    return whenClosed.then(() => void listeners.delete(id));
  },
};

function checked(message) {
  const meta = message.params?._meta ?? {};
  const [version, can] = [meta[`${PREFIX}protocolVersion`], meta[`${PREFIX}clientCapabilities`]];
  if (typeof version !== "string" || typeof can !== "object") {
    throw new Refusal(-32602, `each request says its version and capabilities; this is a server of ${VERSION}`);
  }
  if (version !== VERSION) {
    throw new Refusal(-32022, "Unsupported protocol version", { supported: [VERSION], requested: version });
  }
  if (!methods[message.method]) {
    throw new Refusal(-32601, `there is no method ${message.method}`);
  }
  return can;
}

/** The answer to a request; `undefined` if the request has no answer. */
async function answered(message, check, tell, whenClosed) {
  const { id, method, params } = message;
  try {
    check();
    const can = checked(message);
    const result = await methods[method](params, { can, id, tell, whenClosed });
    const whose = { [`${PREFIX}serverInfo`]: INFO };
    return result && { jsonrpc: "2.0", id, result: { resultType: "complete", _meta: whose, ...result } };
  } catch (error) {
    return { jsonrpc: "2.0", id, error: error.error ?? { code: -32603, message: error.message } };
  }
}

function overStdio() {
  const say = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
  const closing = new Map();
  createInterface({ input: process.stdin }).on("line", async (line) => {
    const message = JSON.parse(line);
    if (message.method === "notifications/cancelled") {
      return closing.get(message.params.requestId)?.();
    }
    if (message.id === undefined) {
      return console.error(`not of this revision: ${line}`);
    }
    const whenClosed = new Promise((done) => closing.set(message.id, done));
    const answer = await answered(message, () => {}, say, whenClosed);
    if (answer) {
      say(answer);
    }
    closing.delete(message.id);
  });
}

const STATUS = { [-32601]: 404, [-32602]: 400, [-32020]: 400, [-32021]: 400, [-32022]: 400 };

function overHttp(port) {
  const isOurs = (name) => name === undefined || /^(https?:\/\/)?(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/.test(name);
  const server = createServer(async (request, response) => {
    const { headers, method } = request;
    const end = (status, body) => {
      response.writeHead(status, { "Content-Type": "application/json" }).end(body && JSON.stringify(body));
    };
    if (!isOurs(headers.host) || !isOurs(headers.origin)) {
      return end(403, { error: "foreign" });
    }
    if (method !== "POST") {
      return end(405);
    }
    const pieces = [];
    for await (const piece of request) {
      pieces.push(piece);
    }
    const message = JSON.parse(Buffer.concat(pieces).toString());
    const check = () => {
      const said = message.params?._meta?.[`${PREFIX}protocolVersion`];
      const named = ["tools/call", "prompts/get"].includes(message.method) ? message.params.name : message.params?.uri;
      const needsName = ["tools/call", "prompts/get", "resources/read"].includes(message.method);
      const isFine =
        said === undefined ||
        (headers["mcp-protocol-version"] === said &&
          headers["mcp-method"] === message.method &&
          (!needsName || headers["mcp-name"] === named));
      if (!isFine) {
        throw new Refusal(-32020, "Header mismatch");
      }
    };
    const event = (message) => {
      if (!response.headersSent) {
        response.writeHead(200, { "Content-Type": "text/event-stream" });
      }
      response.write(`data: ${JSON.stringify({ jsonrpc: "2.0", ...message })}\n\n`);
    };
    const whenClosed = new Promise((done) => response.on("close", done));
    const answer = await answered(message, check, event, whenClosed);
    if (response.headersSent) {
      answer && event(answer);
      response.end();
    } else if (answer?.error) {
      end(STATUS[answer.error.code] ?? 200, answer);
    } else if (headers.accept?.startsWith("text/event-stream")) {
      event(answer);
      response.end();
    } else {
      end(200, answer);
    }
  });
  server.listen(port, "127.0.0.1", () => console.error("listening"));
}

if (process.env.PORT) {
  overHttp(Number(process.env.PORT));
} else {
  overStdio();
}
