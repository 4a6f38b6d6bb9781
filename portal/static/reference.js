// Renders the API reference; "Try it out" acts as the signed-in user.
(() => {
  "use strict";
  const target = document.getElementById("reference");
  window.SwaggerUIBundle({
    url: target.dataset.url,
    domNode: target,
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    requestInterceptor(request) {
      const token = document.querySelector('meta[name="csrf-token"]').content;
      if (new URL(request.url, location.href).origin === location.origin) {
        request.headers["X-CSRFToken"] = token;
      }
      return request;
    },
  });
})();
