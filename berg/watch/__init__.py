"""Looking at jobs: how busy their machines are, their metrics, TensorBoard, the page."""
