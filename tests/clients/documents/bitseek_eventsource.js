const eventSource = new EventSource('https://chat-proxy.bitseek.ai/v1/chat/completions');
let fullContent = '';

eventSource.onmessage = (event) => {
  const data = JSON.parse(event.data);
  const choice = data.choices[0];

  // Check if stream is complete
  if (choice.finish_reason === 'stop') {
    console.log('Response complete:', fullContent);
    eventSource.close();
    return;
  }

  const content = choice.delta?.content || '';
  fullContent += content;
  process.stdout.write(content); // Stream to console
};
