// An agent with the MCP client of the Java SDK, and a model that is told by variables.

import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport;
import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.json.McpJsonMapper;
import io.modelcontextprotocol.spec.McpSchema;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

class Agent {
  static final McpJsonMapper JSON = McpJsonDefaults.getMapper();

  public static void main(String[] args) throws Exception {
    String url = System.getenv("SANDLOT_URL"), token = System.getenv("SANDLOT_TEST_TOKEN");
    var transport = HttpClientStreamableHttpTransport.builder(url.replaceAll("/mcp$", "")).endpoint("/mcp")
        .httpRequestCustomizer((r, method, at, body, context) -> r.header("Authorization", "Bearer " + token)).build();
    try (var client = McpClient.sync(transport).requestTimeout(Duration.ofMinutes(2)).build()) {
      client.initialize();
      List<Object> tools = new ArrayList<>(), messages = new ArrayList<>();
      for (var t : client.listTools().tools()) {
        tools.add(Map.of("type", "function", "function",
            Map.of("name", t.name(), "description", String.valueOf(t.description()), "parameters", t.inputSchema())));
      }
      messages.add(Map.of("role", "user", "content", "go"));
      while (true) {
        Map<?, ?> message = ask(messages, tools);
        messages.add(message);
        if (!(message.get("tool_calls") instanceof List<?> calls)) {
          System.out.println(message.get("content"));
          return;
        }
        for (Object c : calls) {
          Map<?, ?> call = (Map<?, ?>) c, function = (Map<?, ?>) call.get("function");
          messages.add(Map.of("role", "tool", "tool_call_id", call.get("id"), "content",
              result(client, (String) function.get("name"), (String) function.get("arguments"))));
        }
      }
    }
  }

  /** Calls a tool. Its result is as models get it. */
  @SuppressWarnings("unchecked")
  static Object result(io.modelcontextprotocol.client.McpSyncClient client, String name, String arguments)
      throws Exception {
    McpSchema.CallToolResult result;
    try {
      result = client.callTool(McpSchema.CallToolRequest.builder().name(name)
          .arguments(JSON.readValue(arguments, Map.class)).build());
    } catch (RuntimeException e) {
      return "error: " + e.getMessage();
    }
    List<Object> blocks = new ArrayList<>();
    for (var block : result.content()) {
      if (block instanceof McpSchema.TextContent text) {
        blocks.add(Map.of("type", "text", "text", text.text()));
      } else if (block instanceof McpSchema.ImageContent image) {
        blocks.add(Map.of("type", "image_url", "image_url",
            Map.of("url", "data:" + image.mimeType() + ";base64," + image.data())));
      }
    }
    return blocks;
  }

  /** Asks the model for its next message. */
  static Map<?, ?> ask(List<Object> messages, List<Object> tools) throws Exception {
    String body = JSON.writeValueAsString(Map.of("model", System.getenv("MODEL"), "messages", messages, "tools", tools));
    var request = HttpRequest.newBuilder(URI.create(System.getenv("MODEL_URL") + "/v1/chat/completions"))
        .POST(HttpRequest.BodyPublishers.ofString(body)).build();
    String answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    List<?> choices = (List<?>) JSON.readValue(answer, Map.class).get("choices");
    return (Map<?, ?>) ((Map<?, ?>) choices.get(0)).get("message");
  }
}
